//! A server with the example's services, and channels to it over each carrier.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::thread::JoinHandle;
use std::time::Duration;

use http::{Request, Response};
use rackweave_grpc::direct::{self, Limits};
use rackweave_grpc::{Accepted, Dial, DialPeer, http2};
use rackweave_rpc::{Node, NodeConfig, Rate, Transport};
use rackweave_testing::{bind_again, free_address};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio_stream::{Stream, StreamExt as _};
use tonic::Status;
use tonic::body::Body;
use tonic::service::Routes;
use tonic::transport::server::TcpConnectInfo;
use tower_service::Service;

use crate::services::echo_server::EchoServer;
use crate::services::key_value_server::KeyValueServer;
use crate::services::{Parrot, Store};

/// The carrier of the calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Carrier {
    /// The transport of tonic itself.
    Tonic,
    /// HTTP/2 through this crate's connector, over TCP.
    Http2OverTcp,
    /// The direct protocol, over TCP.
    DirectOverTcp,
    /// HTTP/2 over one stream of Homa.
    Http2OverHoma,
    /// The direct protocol, over a stream of Homa for each call.
    DirectOverHoma,
    /// The direct protocol over Polo, which has no streams: short unary calls only.
    DirectOverPolo,
}

pub(crate) const ALL: [Carrier; 5] = [
    Carrier::Tonic,
    Carrier::Http2OverTcp,
    Carrier::DirectOverTcp,
    Carrier::Http2OverHoma,
    Carrier::DirectOverHoma,
];

impl Carrier {
    pub(crate) const fn is_direct(self) -> bool {
        matches!(self, Self::DirectOverTcp | Self::DirectOverHoma | Self::DirectOverPolo)
    }
}

/// A runtime with one thread, so that the order of events is the order of tasks.
pub(crate) fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// Waits until a condition holds, for long enough even on a busy machine.
pub(crate) async fn eventually(what: &str, holds: impl Fn() -> bool) {
    for _ in 0..6000 {
        if holds() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("{what}: not within 60 s");
}

/// A server in this process, on a thread with a runtime of its own, so that killing it ends all its tasks.
pub(crate) struct Served {
    pub(crate) way: Carrier,
    pub(crate) parrot: Parrot,
    store: Store,
    address: SocketAddr,
    server: Option<(JoinHandle<()>, oneshot::Sender<End>)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Kill,
    ShutDown,
}

impl Served {
    pub(crate) async fn start(way: Carrier) -> Self {
        let address = free_address();
        let (parrot, store) = (Parrot::default(), Store::default());
        let mut served = Self { way, parrot, store, address, server: None };
        served.restart().await;
        served
    }

    /// Restarts it at its previous address.
    pub(crate) async fn restart(&mut self) {
        assert!(self.server.is_none());
        let (end, mut ended) = oneshot::channel();
        let (bound, address) = oneshot::channel();
        let (way, bind) = (self.way, self.address);
        let routes = Routes::new(KeyValueServer::new(self.store.clone()))
            .add_service(EchoServer::new(self.parrot.clone()));
        let thread = std::thread::spawn(move || {
            runtime().block_on(async {
                let (stop, stopped) = oneshot::channel::<()>();
                let stopped = async { drop(stopped.await) };
                let mut server = pin!(serve(way, bind, routes, bound, stopped));
                tokio::select! {
                    () = &mut server => return,
                    end = &mut ended => if end != Ok(End::ShutDown) { return },
                }
                drop(stop);
                server.await;
            });
        });
        self.address = address.await.unwrap();
        self.server = Some((thread, end));
    }

    async fn end(&mut self, how: End) {
        let (thread, end) = self.server.take().expect("it runs");
        end.send(how).unwrap();
        tokio::task::spawn_blocking(|| thread.join()).await.unwrap().unwrap();
    }

    /// Drops it with all its outstanding work.
    pub(crate) async fn kill(&mut self) {
        self.end(End::Kill).await;
    }

    /// Waits until it has ended by itself.
    pub(crate) async fn shut_down(&mut self) {
        self.end(End::ShutDown).await;
    }

    pub(crate) fn channel(&self) -> AnyChannel {
        let dial = DialTcp(self.address);
        match self.way {
            Carrier::Tonic => {
                let uri = format!("http://{}", self.address);
                let endpoint = tonic::transport::Endpoint::from_shared(uri).unwrap();
                AnyChannel::Http2(endpoint.connect_lazy())
            }
            Carrier::Http2OverTcp => AnyChannel::Http2(http2::channel(dial)),
            Carrier::DirectOverTcp => {
                AnyChannel::DirectOverTcp(direct::Channel::new(dial, Limits::default()))
            }
            Carrier::Http2OverHoma => {
                let node = node(self.way, "127.0.0.1:0".parse().unwrap());
                AnyChannel::Http2(rackweave_grpc::connect(&node, self.address))
            }
            Carrier::DirectOverHoma | Carrier::DirectOverPolo => {
                let node = node(self.way, "127.0.0.1:0".parse().unwrap());
                let channel = rackweave_grpc::connect_directly(&node, self.address);
                AnyChannel::DirectOverHoma(channel)
            }
        }
    }
}

fn node(way: Carrier, bind: SocketAddr) -> Node {
    let link = Rate::from_gbps(10);
    let polo = way == Carrier::DirectOverPolo;
    let transport = if polo { Transport::polo(link) } else { Transport::homa(link) };
    let config = NodeConfig::new(transport, bind).allow("127.0.0.1".parse().unwrap());
    bind_again(|| Node::bind(config.clone())).unwrap()
}

async fn serve(
    way: Carrier,
    bind: SocketAddr,
    routes: Routes,
    bound: oneshot::Sender<SocketAddr>,
    stopped: impl Future<Output = ()> + Send,
) {
    if matches!(way, Carrier::Http2OverHoma | Carrier::DirectOverHoma | Carrier::DirectOverPolo) {
        let node = node(way, bind);
        bound.send(node.local_addr()).unwrap();
        if way.is_direct() {
            let server = direct::Server::new(routes, Limits::default());
            server.serve_node(node.server(), stopped).await;
        } else {
            let incoming = rackweave_grpc::incoming(node.server());
            let server = http2::server();
            server.serve_with_incoming_shutdown(routes, incoming, stopped).await.unwrap();
        }
        node.shutdown().await;
        return;
    }
    let listener = bind_again(|| std::net::TcpListener::bind(bind)).unwrap();
    listener.set_nonblocking(true).unwrap();
    let listener = TcpListener::from_std(listener).unwrap();
    bound.send(listener.local_addr().unwrap()).unwrap();
    let incoming = incoming(listener);
    match way {
        Carrier::Tonic => {
            let server = tonic::transport::Server::builder();
            server.serve_with_incoming_shutdown(routes, incoming, stopped).await.unwrap();
        }
        Carrier::Http2OverTcp => {
            let server = http2::server();
            server.serve_with_incoming_shutdown(routes, incoming, stopped).await.unwrap();
        }
        _ => {
            let server = direct::Server::new(routes, Limits::default());
            server.serve(incoming, stopped).await.unwrap();
        }
    }
}

/// A channel over any carrier, as one type.
#[derive(Clone, Debug)]
pub(crate) enum AnyChannel {
    Http2(tonic::transport::Channel),
    DirectOverTcp(direct::Channel<DialTcp>),
    DirectOverHoma(direct::Channel<DialPeer>),
}

impl Service<Request<Body>> for AnyChannel {
    type Response = Response<Body>;
    type Error = Status;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Status>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Status>> {
        match self {
            Self::Http2(channel) => {
                channel.poll_ready(cx).map_err(|error| Status::from_error(error.into()))
            }
            Self::DirectOverTcp(channel) => channel.poll_ready(cx),
            Self::DirectOverHoma(channel) => channel.poll_ready(cx),
        }
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        match self {
            Self::Http2(channel) => {
                let response = channel.call(request);
                Box::pin(async { response.await.map_err(|e| Status::from_error(e.into())) })
            }
            Self::DirectOverTcp(channel) => channel.call(request),
            Self::DirectOverHoma(channel) => channel.call(request),
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct DialTcp(SocketAddr);

impl Dial for DialTcp {
    type Stream = TcpStream;

    async fn dial(&self) -> io::Result<TcpStream> {
        let stream = TcpStream::connect(self.0).await?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }
}

fn incoming(listener: TcpListener) -> impl Stream<Item = io::Result<Accepted<TcpStream>>> {
    let local_addr = listener.local_addr().ok();
    tokio_stream::wrappers::TcpListenerStream::new(listener).map(move |stream| {
        let stream = stream?;
        stream.set_nodelay(true)?;
        let info = TcpConnectInfo { local_addr, remote_addr: stream.peer_addr().ok() };
        Ok(Accepted { stream, info })
    })
}
