//! Calls that arrive as one message and are answered by one.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::{Buf as _, Bytes, BytesMut};
use http::{Request, Response};
use rackweave_core::HostId;
use rackweave_rpc::{Incoming, Stream};
use tokio::io::{ReadHalf, WriteHalf};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::timeout;
use tonic::Status;
use tonic::body::Body;
use tonic::transport::server::TcpConnectInfo;
use tower_service::Service;

use super::frame::{
    CALL_BYTES, FRAME_HEADER, Frame, FrameReader, RequestHead, ResponseHead, encode_call,
};
use super::server::{
    IncomingStream, RequestBody, Rest, Server, end, expiry, first, not_understood, refuse, request,
    serve_call,
};
use super::timeout::grpc_timeout;
use super::write::{FrameWriter, Next, WriteError, failure, whole};
use super::{BoxError, Limits};

/// How long the rest of a response waits for its client's stream. The value is Rackweave's.
const WAITS: Duration = Duration::from_secs(10);

impl<S, B> Server<S>
where
    S: Service<Request<Body>, Response = Response<B>, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send,
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    /// Serves messages and streams of a node until the node stops, or until `shutdown` is ready; outstanding calls are
    /// then completed, and no further ones are accepted. Dropping the future cancels them immediately. Above the
    /// [limit](Limits::calls), calls are refused as `RESOURCE_EXHAUSTED`.
    pub async fn serve_node(
        self,
        server: rackweave_rpc::Server,
        shutdown: impl Future<Output = ()>,
    ) {
        let mut shutdown = pin!(shutdown);
        let permits = Arc::new(Semaphore::new(self.limits.calls));
        let table = Arc::new(Table::default());
        let mut calls = JoinSet::new();
        let mut stopping = false;
        while !(stopping && calls.is_empty()) {
            let came = tokio::select! {
                biased;
                () = &mut shutdown, if !stopping => {
                    stopping = true;
                    continue;
                }
                Some(_) = calls.join_next() => continue,
                came = server.next() => came,
            };
            // After the end of service, only calls that started before it continue.
            let permit =
                if stopping { None } else { Arc::clone(&permits).try_acquire_owned().ok() };
            match came {
                None => break,
                Some(Incoming::Request(request)) => {
                    let Some(number) = number(request.bytes()) else { continue };
                    let key = (request.peer().host(), number);
                    let entry = table.add(key);
                    let work = self.clone().message(request, permit, entry);
                    table.set_abort(key, calls.spawn(work));
                }
                Some(Incoming::OneWay(message)) => {
                    if let Some(number) = number(message.bytes()) {
                        table.give_up((message.peer().host(), number));
                    }
                }
                Some(Incoming::Stream(stream)) => {
                    calls.spawn(self.clone().stream(stream, permit, Arc::clone(&table)));
                }
                Some(_) => {}
            }
        }
        while calls.join_next().await.is_some() {}
    }

    async fn stream(self, stream: Stream, permit: Option<OwnedSemaphorePermit>, table: Arc<Table>) {
        let peer = stream.peer();
        let info = TcpConnectInfo { local_addr: None, remote_addr: Some(peer.address()) };
        match first(stream, self.limits).await {
            Some(IncomingStream::Call(head, reader, write)) if permit.is_some() => {
                serve_call(head, reader, write, info, self.service).await;
            }
            Some(IncomingStream::Call(_, reader, write)) => {
                refuse(&too_many(), reader, write).await
            }
            Some(IncomingStream::Resumes(number, reader, mut write)) => {
                write.resumes();
                // If no call waits for the stream, it is dropped, which its client notices.
                if let Some(waiting) = table.take_waiting((peer.host(), number)) {
                    let _ = waiting.send((reader, write));
                }
            }
            None => {}
        }
    }

    async fn message(
        self,
        mut call: rackweave_rpc::Request,
        permit: Option<OwnedSemaphorePermit>,
        mut entry: Entry,
    ) {
        let Self { mut service, limits } = self;
        let mut bytes = call.take_bytes();
        bytes.advance(FRAME_HEADER + CALL_BYTES);
        let head = match (&permit, head(bytes, limits).await) {
            (Some(_), Ok(head)) => Ok(head),
            (None, _) => Err(too_many()),
            (_, Err(status)) => Err(status),
        };
        let (head, reader) = match head {
            Ok(head) => head,
            Err(status) => return answer(call, failure(&status, true)).await,
        };
        let mut expiry = pin!(expiry(grpc_timeout(&head.fields)));
        let info = TcpConnectInfo { local_addr: None, remote_addr: Some(call.peer().address()) };
        let body = RequestBody { reader: Some(reader), return_reader: None };
        let request = request(head, info, Body::new(body));
        let respond = async {
            // Generated servers are always ready, and so is `Routes`.
            let _ = poll_fn(|cx| service.poll_ready(cx)).await;
            let Ok(response) = service.call(request).await;
            let (parts, body) = response.into_parts();
            let mut body = Box::pin(body);
            let mut out = BytesMut::with_capacity(512);
            ResponseHead::encode(parts.status, &parts.headers, &mut out)
                .map_err(WriteError::Body)?;
            let next = whole(&mut out, body.as_mut()).await?;
            Ok((out, next, body))
        };
        let responded = tokio::select! {
            biased;
            responded = respond => responded,
            expired = &mut expiry => Err(expired),
        };
        let (mut out, next, mut body) = match responded {
            Ok(responded) => responded,
            Err(WriteError::Body(status)) => return answer(call, failure(&status, true)).await,
            Err(WriteError::Io) => return,
        };
        if next == Next::End {
            return answer(call, Ok(out)).await;
        }
        // The rest follows over a stream.
        encode_call(entry.key.1, &mut out);
        answer(call, Ok(out)).await;
        let Ok(Ok((reader, mut write))) = timeout(WAITS, &mut entry.resumed).await else { return };
        let mut rest = Rest::new(reader);
        let written = tokio::select! {
            biased;
            written = write.body(BytesMut::new(), body.as_mut()) => written,
            () = rest.closed() => Err(WriteError::Io),
            expired = &mut expiry => Err(expired),
        };
        end(written, &mut write, &mut rest).await;
    }
}

fn too_many() -> Status {
    Status::resource_exhausted("the server is busy with as many calls as it may be, or shuts down")
}

/// Answers a call. If there is no answer, the call is dropped, which makes it fail at its client.
async fn answer(call: rackweave_rpc::Request, bytes: Result<BytesMut, Status>) {
    if let Ok(bytes) = bytes {
        let _ = call.respond(bytes.freeze()).await;
    }
}

type MessageReader = FrameReader<tokio::io::Empty>;

async fn head(bytes: Bytes, limits: Limits) -> Result<(RequestHead, MessageReader), Status> {
    let mut reader = FrameReader::with_prefix(bytes, tokio::io::empty(), limits.head_bytes);
    match reader.frame().await {
        Ok(Some(Frame::Head(bytes))) => match RequestHead::decode(bytes) {
            Ok(head) => Ok((head, reader)),
            Err(error) => Err(not_understood(&error.to_string())),
        },
        Ok(_) => Err(not_understood("the call has no head")),
        Err(error) => Err(not_understood(&error.to_string())),
    }
}

/// Returns the number at the beginning of a message.
fn number(bytes: &Bytes) -> Option<u64> {
    let mut out = BytesMut::with_capacity(FRAME_HEADER + CALL_BYTES);
    encode_call(0, &mut out);
    let rest = bytes.strip_prefix(&out[..FRAME_HEADER])?;
    Some(u64::from_be_bytes(*rest.first_chunk()?))
}

/// The key of a call: the client, and the client's number of the call.
type Key = (HostId, u64);

/// The stream that carries the rest of a response.
type Resumed = (FrameReader<ReadHalf<Stream>>, FrameWriter<WriteHalf<Stream>>);

/// Outstanding calls that arrived as messages.
#[derive(Default)]
struct Table(Mutex<BTreeMap<Key, Known>>);

struct Known {
    waiting: Option<oneshot::Sender<Resumed>>,
    abort: Option<AbortHandle>,
}

impl Table {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<Key, Known>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(self: &Arc<Self>, key: Key) -> Entry {
        let (waiting, resumed) = oneshot::channel();
        self.lock().insert(key, Known { waiting: Some(waiting), abort: None });
        Entry { table: Arc::clone(self), key, resumed }
    }

    fn set_abort(&self, key: Key, abort: AbortHandle) {
        // The call may have ended already.
        if let Some(known) = self.lock().get_mut(&key) {
            known.abort = Some(abort);
        }
    }

    fn give_up(&self, key: Key) {
        let abort = self.lock().get_mut(&key).and_then(|known| known.abort.take());
        if let Some(abort) = abort {
            abort.abort();
        }
    }

    fn take_waiting(&self, key: Key) -> Option<oneshot::Sender<Resumed>> {
        self.lock().get_mut(&key)?.waiting.take()
    }
}

/// An outstanding call's entry in the table.
struct Entry {
    table: Arc<Table>,
    key: Key,
    resumed: oneshot::Receiver<Resumed>,
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.table.lock().remove(&self.key);
    }
}
