//! A call made over a stream of its own.

use std::fmt;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use http::{Request, Response};
use tokio::io::{AsyncRead, AsyncWrite, ReadHalf, WriteHalf};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinHandle;
use tokio::time::{Sleep, sleep};
use tonic::Status;
use tonic::body::Body;
use tower_service::Service;

use super::Limits;
use super::frame::{Frame, FrameReader, Malformed, RequestHead, ResponseHead};
use super::timeout::grpc_timeout;
use super::write::{FrameWriter, WriteError};
use crate::Dial;

/// What generated clients take. Clones share the limit of calls.
#[derive(Clone)]
pub struct Channel<D> {
    dial: D,
    limits: Limits,
    calls: Arc<Semaphore>,
}

impl<D: Dial> Channel<D> {
    /// Nothing is opened before the first call.
    #[must_use]
    pub fn new(dial: D, limits: Limits) -> Self {
        Self { dial, limits, calls: Arc::new(Semaphore::new(limits.calls)) }
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
        // A call waits for its turn itself: its deadline counts meanwhile.
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let (dial, limits, calls) = (self.dial.clone(), self.limits, Arc::clone(&self.calls));
        let mut deadline = grpc_timeout(request.headers()).map(|timeout| Box::pin(sleep(timeout)));
        Box::pin(async move {
            let mut call = pin!(async {
                let permit = calls.acquire_owned().await;
                let permit = permit.map_err(|_| Status::unavailable("the channel is closed"))?;
                let stream = dial.dial().await;
                let stream = stream.map_err(|error| lost(&error))?;
                exchange(stream, request, limits, permit).await
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

/// Sends the request until the response begins; what is left of it goes on beside the response.
async fn exchange<S>(
    stream: S,
    request: Request<Body>,
    limits: Limits,
    permit: OwnedSemaphorePermit,
) -> Result<(Response<()>, Reading<S>), Status>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (parts, body) = request.into_parts();
    let mut out = BytesMut::with_capacity(512);
    let path = parts.uri.path();
    RequestHead::encode(path, &parts.headers, &mut out)?;
    if out.len() > limits.head_bytes as usize {
        let message = format!("{} bytes of metadata are more than is allowed", out.len());
        return Err(Status::resource_exhausted(message));
    }
    let (read, write) = tokio::io::split(stream);
    let mut write = FrameWriter::new(write);
    let mut reader = FrameReader::new(read, limits.head_bytes);
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
    let head = match head {
        Some(Frame::Head(bytes)) => ResponseHead::decode(bytes).map_err(|error| wrong(&error))?,
        Some(_) => return Err(wrong(&Malformed::Unexpected("anything before a head"))),
        None => return Err(given_up()),
    };
    let mut response = Response::new(());
    *response.status_mut() = head.status;
    *response.version_mut() = http::Version::HTTP_2;
    *response.headers_mut() = head.fields;
    let writer = match written {
        Some(write) => Writer::Done { _write: write },
        None => Writer::Task(tokio::spawn(async move { writing.await.1 })),
    };
    Ok((response, Reading { reader, _writer: writer, _permit: permit }))
}

/// The request's side, while the response is read.
enum Writer<S> {
    /// Kept: dropped before the response's end, it says that the call was given up.
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
    reader: FrameReader<ReadHalf<S>>,
    _writer: Writer<S>,
    _permit: OwnedSemaphorePermit,
}

/// Messages and trailers as they come. Dropped before its end, it gives up the call.
struct ResponseBody<S> {
    /// Gone once the end has come: the stream with it.
    reading: Option<Reading<S>>,
    deadline: Deadline,
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
        let result = match reading.reader.poll_frame(cx) {
            Poll::Ready(Ok(Some(Frame::Data(bytes)))) => {
                return Poll::Ready(Some(Ok(http_body::Frame::data(bytes))));
            }
            Poll::Ready(Ok(Some(Frame::Trailers(fields)))) => {
                Some(Ok(http_body::Frame::trailers(fields)))
            }
            Poll::Ready(Ok(Some(Frame::End))) => None,
            Poll::Ready(Ok(Some(Frame::Head(_)))) => {
                Some(Err(wrong(&Malformed::Unexpected("a second head"))))
            }
            Poll::Ready(Ok(None)) => Some(Err(given_up())),
            Poll::Ready(Err(error)) => Some(Err(lost(&error))),
            Poll::Pending => match poll_deadline(&mut this.deadline, cx) {
                Poll::Ready(status) => Some(Err(status)),
                Poll::Pending => return Poll::Pending,
            },
        };
        this.reading = None;
        Poll::Ready(result)
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
