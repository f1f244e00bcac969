//! The client side of calls without HTTP/2: by a message, or over a stream of their own.

use std::fmt;
use std::future::{Future, IntoFuture as _, poll_fn};
#[expect(clippy::disallowed_types, reason = "for its randomness")]
use std::hash::RandomState;
use std::hash::{BuildHasher as _, Hasher as _};
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf as _, Bytes, BytesMut};
use http::{Request, Response};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, ReadBuf, ReadHalf, WriteHalf};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinHandle;
use tokio::time::{Sleep, sleep};
use tonic::Status;
use tonic::body::Body;
use tower_service::Service;

use super::Limits;
use super::frame::{Frame, FrameReader, Malformed, RequestHead, ResponseHead, encode_call};
use super::timeout::grpc_timeout;
use super::write::{FrameWriter, Next, WriteError, whole};
use crate::{Dial, Messages};

/// The channel that generated clients take. Clones share the limit of concurrent calls.
#[derive(Clone)]
pub struct Channel<D> {
    dial: D,
    limits: Limits,
    calls: Arc<Semaphore>,
    /// The number of the next call.
    number: Arc<AtomicU64>,
}

impl<D: Dial> Channel<D> {
    /// Creates a channel, which opens nothing before the first call.
    #[must_use]
    pub fn new(dial: D, limits: Limits) -> Self {
        // Channels of one node must not use the same numbers, so each starts at a random one.
        #[expect(clippy::disallowed_types, reason = "for its randomness")]
        let start = RandomState::new().build_hasher().finish();
        let number = Arc::new(AtomicU64::new(start));
        Self { dial, limits, calls: Arc::new(Semaphore::new(limits.calls)), number }
    }
}

impl<D> fmt::Debug for Channel<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Channel").field("limits", &self.limits).finish_non_exhaustive()
    }
}

impl<D: Dial> Service<Request<Body>> for Channel<D> {
    type Response = Response<Body>;
    type Error = Status;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Status>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Status>> {
        // The call itself waits for room under the limit, so that its deadline covers the wait.
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let (dial, limits, calls) = (self.dial.clone(), self.limits, Arc::clone(&self.calls));
        let number = self.number.fetch_add(1, Ordering::Relaxed);
        let timeout = grpc_timeout(request.headers());
        let mut deadline = timeout.map(|timeout| Box::pin(sleep(timeout)));
        Box::pin(async move {
            let mut call = pin!(async {
                let permit = calls.acquire_owned().await;
                let permit = permit.map_err(|_| Status::unavailable("the channel is closed"))?;
                begin(dial, request, number, timeout, limits, permit).await
            });
            let (response, reading) = poll_fn(|cx| {
                if let Poll::Ready(response) = call.as_mut().poll(cx) {
                    return Poll::Ready(response);
                }
                poll_deadline(&mut deadline, cx).map(Err)
            })
            .await?;
            Ok(response.map(|()| Body::new(ResponseBody { reading: Some(reading), deadline })))
        })
    }
}

type Deadline = Option<Pin<Box<Sleep>>>;

fn poll_deadline(deadline: &mut Deadline, cx: &mut Context<'_>) -> Poll<Status> {
    match deadline {
        Some(sleep) => sleep
            .as_mut()
            .poll(cx)
            .map(|()| Status::deadline_exceeded("the call's deadline passed before its end came")),
        None => Poll::Pending,
    }
}

/// Sends the request as one message, if it is complete at once and messages are available; otherwise over a stream.
async fn begin<D: Dial>(
    dial: D,
    request: Request<Body>,
    number: u64,
    timeout: Option<Duration>,
    limits: Limits,
    permit: OwnedSemaphorePermit,
) -> Result<(Response<()>, Reading<D::Stream>), Status> {
    let (parts, mut body) = request.into_parts();
    let mut out = BytesMut::with_capacity(512);
    encode_call(number, &mut out);
    let before = out.len();
    RequestHead::encode(parts.uri.path(), &parts.headers, &mut out)?;
    if out.len() - before > limits.head_bytes as usize {
        let message = format!("{} bytes of metadata are more than is allowed", out.len() - before);
        return Err(Status::resource_exhausted(message));
    }
    if let Some(messages) = dial.messages() {
        match whole(&mut out, Pin::new(&mut body)).await {
            Ok(Next::End) => {
                let call = Call { messages, number, over: false };
                return call.exchange(dial, out.freeze(), timeout, limits, permit).await;
            }
            Ok(Next::More) => {}
            Err(WriteError::Body(status)) => return Err(status),
            Err(WriteError::Io) => return Err(given_up()),
        }
    }
    out.advance(before);
    let stream = dial.dial().await.map_err(|error| lost(&error))?;
    exchange(stream, out, body, limits, permit).await
}

/// A call made by a message. Dropping it before its end notifies the server.
struct Call {
    messages: Messages,
    number: u64,
    over: bool,
}

impl Call {
    async fn exchange<D: Dial>(
        mut self,
        dial: D,
        request: Bytes,
        timeout: Option<Duration>,
        limits: Limits,
        permit: OwnedSemaphorePermit,
    ) -> Result<(Response<()>, Reading<D::Stream>), Status> {
        let Messages { client, peer } = &self.messages;
        let call = client.call(*peer, request).deadline(timeout.unwrap_or(Duration::MAX));
        let answer = call.await;
        self.over = true;
        let answer = answer.map_err(|error| lost(&error.into()))?;
        let mut reader = FrameReader::with_prefix(answer, Source::Message, limits.head_bytes);
        let response = response(reader.frame().await.map_err(|error| lost(&error))?)?;
        let number = self.number;
        let resume: Resume<D::Stream> =
            Box::new(move || Box::pin(async move { resume(&dial, number).await }));
        let reading = Reading {
            reader,
            writer: Writer::None,
            resume: Resumption::Possible(resume),
            _permit: permit,
        };
        Ok((response, reading))
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        if !self.over
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            let mut out = BytesMut::new();
            encode_call(self.number, &mut out);
            let Messages { client, peer } = &self.messages;
            let give_up = client.send(*peer, out.freeze()).into_future();
            runtime.spawn(give_up);
        }
    }
}

/// Opens the stream that carries the rest of a response.
async fn resume<D: Dial>(dial: &D, number: u64) -> io::Result<D::Stream> {
    let mut stream = dial.dial().await?;
    let mut out = BytesMut::new();
    encode_call(number, &mut out);
    stream.write_all(&out).await?;
    stream.flush().await?;
    Ok(stream)
}

type Resuming<S> = Pin<Box<dyn Future<Output = io::Result<S>> + Send>>;
type Resume<S> = Box<dyn FnOnce() -> Resuming<S> + Send>;

/// The stream that carries the rest of a response.
enum Resumption<S> {
    Impossible,
    Possible(Resume<S>),
    UnderWay(Resuming<S>),
}

/// The source of a response.
enum Source<S> {
    /// The whole response arrived in the message.
    Message,
    Stream(ReadHalf<S>),
}

impl<S: AsyncRead> AsyncRead for Source<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match &mut *self {
            Self::Message => Poll::Ready(Ok(())),
            Self::Stream(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

fn response(head: Option<Frame>) -> Result<Response<()>, Status> {
    let head = match head {
        Some(Frame::Head(bytes)) => ResponseHead::decode(bytes).map_err(|error| wrong(&error))?,
        Some(_) => return Err(wrong(&Malformed::Unexpected("anything before a head"))),
        None => return Err(given_up()),
    };
    let mut response = Response::new(());
    *response.status_mut() = head.status;
    *response.version_mut() = http::Version::HTTP_2;
    *response.headers_mut() = head.fields;
    Ok(response)
}

/// Sends the request (`out`, then the body) until the response begins; the rest is sent while the response is read.
async fn exchange<S>(
    stream: S,
    out: BytesMut,
    body: Body,
    limits: Limits,
    permit: OwnedSemaphorePermit,
) -> Result<(Response<()>, Reading<S>), Status>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (read, write) = tokio::io::split(stream);
    let mut write = FrameWriter::new(write);
    let mut reader = FrameReader::new(Source::Stream(read), limits.head_bytes);
    let mut writing = Box::pin(async move {
        let mut body = pin!(body);
        let written = write.body(out, body.as_mut()).await;
        (written, write)
    });
    let mut written = None;
    let head = poll_fn(|cx| {
        if written.is_none()
            && let Poll::Ready((result, write)) = writing.as_mut().poll(cx)
        {
            if let Err(WriteError::Body(status)) = result {
                return Poll::Ready(Err(status));
            }
            written = Some(write);
        }
        reader.poll_frame(cx).map_err(|error| lost(&error))
    })
    .await?;
    let response = response(head)?;
    let writer = match written {
        Some(write) => Writer::Done { _write: write },
        None => Writer::Task(tokio::spawn(async move { writing.await.1 })),
    };
    Ok((response, Reading { reader, writer, resume: Resumption::Impossible, _permit: permit }))
}

/// The request's side of the stream, while the response is read.
enum Writer<S> {
    /// There is no stream, or not yet.
    None,
    /// Kept, because dropping it before the response's end cancels the call.
    Done {
        _write: FrameWriter<WriteHalf<S>>,
    },
    Task(JoinHandle<FrameWriter<WriteHalf<S>>>),
}

impl<S> Drop for Writer<S> {
    fn drop(&mut self) {
        if let Self::Task(task) = self {
            task.abort();
        }
    }
}

struct Reading<S> {
    reader: FrameReader<Source<S>>,
    writer: Writer<S>,
    resume: Resumption<S>,
    _permit: OwnedSemaphorePermit,
}

/// Messages and trailers in order of arrival. Dropping it before its end cancels the call.
struct ResponseBody<S> {
    /// `None` after the end, which releases the stream.
    reading: Option<Reading<S>>,
    deadline: Deadline,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Reading<S> {
    /// The next piece; `None` after the last.
    fn poll_piece(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<http_body::Frame<Bytes>>, Status>> {
        loop {
            if let Resumption::UnderWay(resuming) = &mut self.resume {
                let stream = ready!(resuming.as_mut().poll(cx)).map_err(|error| lost(&error))?;
                let (read, write) = tokio::io::split(stream);
                self.reader = FrameReader::new(Source::Stream(read), self.reader.max_head());
                self.writer = Writer::Done { _write: FrameWriter::new(write) };
                self.resume = Resumption::Impossible;
            }
            let frame = ready!(self.reader.poll_frame(cx)).map_err(|error| lost(&error))?;
            return Poll::Ready(match frame {
                Some(Frame::Data(bytes)) => Ok(Some(http_body::Frame::data(bytes))),
                Some(Frame::Trailers(fields)) => Ok(Some(http_body::Frame::trailers(fields))),
                Some(Frame::End) => Ok(None),
                Some(Frame::Head(_)) => Err(wrong(&Malformed::Unexpected("a second head"))),
                Some(Frame::Call(_)) => {
                    match std::mem::replace(&mut self.resume, Resumption::Impossible) {
                        Resumption::Possible(resume) => {
                            self.resume = Resumption::UnderWay(resume());
                            continue;
                        }
                        _ => Err(wrong(&Malformed::Unexpected("another call"))),
                    }
                }
                None => Err(given_up()),
            });
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> http_body::Body for ResponseBody<S> {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, Status>>> {
        let this = &mut *self;
        let Some(reading) = &mut this.reading else { return Poll::Ready(None) };
        let piece = match reading.poll_piece(cx) {
            Poll::Ready(piece) => piece.transpose(),
            Poll::Pending => match poll_deadline(&mut this.deadline, cx) {
                Poll::Ready(status) => Some(Err(status)),
                Poll::Pending => return Poll::Pending,
            },
        };
        if !matches!(&piece, Some(Ok(piece)) if piece.is_data()) {
            // The end, with or without an error.
            this.reading = None;
        }
        Poll::Ready(piece)
    }

    fn is_end_stream(&self) -> bool {
        self.reading.is_none()
    }
}

fn lost(error: &io::Error) -> Status {
    match error.get_ref().and_then(|inner| inner.downcast_ref::<Malformed>()) {
        Some(Malformed::Truncated) => given_up(),
        Some(malformed) => wrong(malformed),
        None => crate::node::failed(error),
    }
}

fn given_up() -> Status {
    Status::unavailable("the server gave up the call's stream before its end")
}

fn wrong(malformed: &Malformed) -> Status {
    Status::internal(format!("the server's answer is not understood: {malformed}"))
}
