//! The server side of calls, each on its own stream.

use std::convert::Infallible;
use std::fmt;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::{Method, Request, Response};
use tokio::io::{AsyncRead, AsyncWrite, ReadHalf, WriteHalf};
use tokio::sync::{Semaphore, oneshot};
use tokio::time::{sleep, timeout};
use tokio_stream::{Stream, StreamExt as _};
use tonic::Status;
use tonic::body::Body;
use tonic::transport::server::TcpConnectInfo;
use tower_service::Service;

use super::frame::{Frame, FrameReader, RequestHead, ResponseHead};
use super::timeout::grpc_timeout;
use super::write::{FrameWriter, WriteError};
use super::{BoxError, Limits};
use crate::Accepted;

/// A stream whose head does not arrive within this time is dropped. The value is Rackweave's.
const HEAD_WITHIN: Duration = Duration::from_secs(10);

/// How long a client may take to read a response's end before its stream is dropped. The value is Rackweave's.
const LINGER: Duration = Duration::from_secs(10);

/// Serves a tonic service: a generated server, or `tonic::service::Routes` of several.
#[derive(Clone)]
pub struct Server<S> {
    pub(super) service: S,
    pub(super) limits: Limits,
}

impl<S> fmt::Debug for Server<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("limits", &self.limits).finish_non_exhaustive()
    }
}

impl<S, B> Server<S>
where
    S: Service<Request<Body>, Response = Response<B>, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send,
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    /// Creates a server of one service.
    #[must_use]
    pub const fn new(service: S, limits: Limits) -> Self {
        Self { service, limits }
    }

    /// Serves incoming streams until there are no more, or until `shutdown` is ready. Outstanding calls are then
    /// completed, and no further ones are accepted. Dropping the future cancels them immediately.
    ///
    /// # Errors
    /// The first error of `incoming`, which is not polled again.
    pub async fn serve<I, T>(
        self,
        incoming: I,
        shutdown: impl Future<Output = ()>,
    ) -> io::Result<()>
    where
        I: Stream<Item = io::Result<Accepted<T>>>,
        T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let mut incoming = pin!(incoming);
        let mut shutdown = pin!(shutdown);
        let permits = Arc::new(Semaphore::new(self.limits.calls));
        let mut calls = tokio::task::JoinSet::new();
        let result = loop {
            let next = async {
                let permit = Arc::clone(&permits).acquire_owned().await;
                (permit, incoming.next().await)
            };
            let (permit, accepted) = tokio::select! {
                biased;
                () = &mut shutdown => break Ok(()),
                Some(_) = calls.join_next() => continue,
                next = next => next,
            };
            let accepted = match accepted {
                Some(Ok(accepted)) => accepted,
                Some(Err(error)) => break Err(error),
                None => break Ok(()),
            };
            let (service, limits) = (self.service.clone(), self.limits);
            calls.spawn(async move {
                // Responses continue over streams only where messages are served: in `serve_node`.
                if let Some(IncomingStream::Call(head, reader, write)) =
                    first(accepted.stream, limits).await
                {
                    serve_call(head, reader, write, accepted.info, service).await;
                }
                drop(permit);
            });
        };
        while calls.join_next().await.is_some() {}
        result
    }
}

/// The purpose of an incoming stream: a call, or the rest of a response.
pub(super) enum IncomingStream<T> {
    Call(RequestHead, FrameReader<ReadHalf<T>>, FrameWriter<WriteHalf<T>>),
    Resumes(u64, FrameReader<ReadHalf<T>>, FrameWriter<WriteHalf<T>>),
}

/// Reads the first frame of a stream; other kinds of frame are answered with an error.
pub(super) async fn first<T>(stream: T, limits: Limits) -> Option<IncomingStream<T>>
where
    T: AsyncRead + AsyncWrite + Unpin + Send,
{
    let (read, write) = tokio::io::split(stream);
    let write = FrameWriter::new(write);
    let mut reader = FrameReader::new(read, limits.head_bytes);
    let reason = match timeout(HEAD_WITHIN, reader.frame()).await {
        Ok(Ok(Some(Frame::Head(bytes)))) => match RequestHead::decode(bytes) {
            Ok(head) => return Some(IncomingStream::Call(head, reader, write)),
            Err(error) => error.to_string(),
        },
        Ok(Ok(Some(Frame::Call(number)))) => {
            return Some(IncomingStream::Resumes(number, reader, write));
        }
        Ok(Ok(Some(_))) => "the call has no head".to_owned(),
        Ok(Err(error)) if error.kind() == io::ErrorKind::InvalidData => error.to_string(),
        // The client has disappeared.
        _ => return None,
    };
    refuse(&not_understood(&reason), reader, write).await;
    None
}

pub(super) fn not_understood(reason: &str) -> Status {
    Status::internal(format!("the request is not understood: {reason}"))
}

/// Ends a call that was not started.
pub(super) async fn refuse<T: AsyncRead + AsyncWrite>(
    status: &Status,
    reader: FrameReader<ReadHalf<T>>,
    mut write: FrameWriter<WriteHalf<T>>,
) {
    if write.fail(status).await.is_ok() {
        linger(&mut write, &mut Rest::new(reader)).await;
    }
}

/// Waits until a call's deadline, and returns its status.
pub(super) async fn expiry(given: Option<Duration>) -> WriteError {
    match given {
        Some(given) => sleep(given).await,
        None => std::future::pending().await,
    }
    WriteError::Body(Status::deadline_exceeded("the call's deadline passed at the server"))
}

/// Serves one call, from its head to its end.
pub(super) async fn serve_call<T, S, B>(
    head: RequestHead,
    reader: FrameReader<ReadHalf<T>>,
    mut write: FrameWriter<WriteHalf<T>>,
    info: TcpConnectInfo,
    mut service: S,
) where
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    S: Service<Request<Body>, Response = Response<B>, Error = Infallible>,
    B: http_body::Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    let deadline = grpc_timeout(&head.fields);
    let (return_reader, back) = oneshot::channel();
    let body = RequestBody { reader: Some(reader), return_reader: Some(return_reader) };
    let request = request(head, info, Body::new(body));
    let mut rest = Rest { back, reader: None };
    let served = {
        let respond = async {
            // Generated servers are always ready, and so is `Routes`.
            let _ = poll_fn(|cx| service.poll_ready(cx)).await;
            let Ok(response) = service.call(request).await;
            respond(&mut write, response).await
        };
        tokio::select! {
            biased;
            served = respond => served,
            () = rest.closed() => Err(WriteError::Io),
            expired = expiry(deadline) => Err(expired),
        }
    };
    end(served, &mut write, &mut rest).await;
}

/// Ends a stream with the call's status.
pub(super) async fn end<T: AsyncRead + AsyncWrite>(
    served: Result<(), WriteError>,
    write: &mut FrameWriter<WriteHalf<T>>,
    rest: &mut Rest<T>,
) {
    let ended = match served {
        Ok(()) => true,
        Err(WriteError::Io) => false,
        Err(WriteError::Body(status)) => write.fail(&status).await.is_ok(),
    };
    if ended {
        linger(write, rest).await;
    }
}

/// The client closes its stream once it has read the end; dropping the stream earlier could discard data
/// in flight.
async fn linger<T: AsyncRead + AsyncWrite>(
    write: &mut FrameWriter<WriteHalf<T>>,
    rest: &mut Rest<T>,
) {
    let closed = async {
        if write.shutdown().await.is_ok() {
            rest.closed().await;
        }
    };
    let _ = timeout(LINGER, closed).await;
}

pub(super) fn request(head: RequestHead, info: TcpConnectInfo, body: Body) -> Request<Body> {
    let mut request = Request::new(body);
    *request.method_mut() = Method::POST;
    *request.version_mut() = http::Version::HTTP_2;
    *request.uri_mut() = head.path;
    *request.headers_mut() = head.fields;
    request.extensions_mut().insert(info);
    request
}

async fn respond<W, B>(write: &mut FrameWriter<W>, response: Response<B>) -> Result<(), WriteError>
where
    W: AsyncWrite + Unpin,
    B: http_body::Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    let (parts, body) = response.into_parts();
    let mut out = BytesMut::with_capacity(512);
    ResponseHead::encode(parts.status, &parts.headers, &mut out).map_err(WriteError::Body)?;
    write.body(out, pin!(body)).await
}

/// The request's messages, as the service polls for them.
pub(super) struct RequestBody<R> {
    pub(super) reader: Option<FrameReader<R>>,
    /// The reader goes back through this channel; it is dropped if the client has disappeared.
    pub(super) return_reader: Option<oneshot::Sender<FrameReader<R>>>,
}

impl<R> RequestBody<R> {
    fn return_reader(&mut self) {
        if let (Some(reader), Some(return_reader)) = (self.reader.take(), self.return_reader.take())
        {
            // If the receiver is gone, the call is over.
            let _ = return_reader.send(reader);
        }
    }
}

impl<R> Drop for RequestBody<R> {
    fn drop(&mut self) {
        self.return_reader();
    }
}

impl<R: AsyncRead + Unpin> http_body::Body for RequestBody<R> {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, Status>>> {
        let Some(reader) = &mut self.reader else { return Poll::Ready(None) };
        let status = match ready!(reader.poll_frame(cx)) {
            Ok(Some(Frame::Data(bytes))) => {
                return Poll::Ready(Some(Ok(http_body::Frame::data(bytes))));
            }
            Ok(Some(Frame::End)) => {
                self.return_reader();
                return Poll::Ready(None);
            }
            Ok(Some(_)) => Status::internal("the request is not understood: a head in its middle"),
            Ok(None) => Status::cancelled("the client gave up the call"),
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                Status::internal(format!("the request is not understood: {error}"))
            }
            Err(error) => Status::cancelled(format!("the client is lost: {error}")),
        };
        self.reader = None;
        self.return_reader = None;
        Poll::Ready(Some(Err(status)))
    }

    fn is_end_stream(&self) -> bool {
        self.reader.is_none()
    }
}

/// The client side after the request's end, or after the service has stopped reading: only its disappearance matters.
pub(super) struct Rest<T> {
    back: oneshot::Receiver<FrameReader<ReadHalf<T>>>,
    reader: Option<FrameReader<ReadHalf<T>>>,
}

impl<T: AsyncRead> Rest<T> {
    pub(super) fn new(reader: FrameReader<ReadHalf<T>>) -> Self {
        let (_, back) = oneshot::channel();
        Self { back, reader: Some(reader) }
    }

    /// Completes once the client has closed its stream. The future may be dropped and polled again.
    pub(super) async fn closed(&mut self) {
        loop {
            match &mut self.reader {
                Some(reader) => {
                    if !matches!(reader.frame().await, Ok(Some(_))) {
                        return;
                    }
                }
                None => match (&mut self.back).await {
                    Ok(reader) => self.reader = Some(reader),
                    Err(_) => return,
                },
            }
        }
    }
}
