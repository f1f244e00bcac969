//! The client side of each row.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use quinn::rustls;
use rackweave_grpc::{DialPeer, direct};
use rackweave_rpc::{Client, Key, Node, NodeConfig, Peer, Rate, Transport};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::Instant;
use tonic::transport::Channel;

use crate::services::Blob;
use crate::services::echo_client::EchoClient;
use crate::{Error, PIECE};

/// A row of the table: one of the compared systems.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Row {
    Tcp,
    RpcHoma,
    RpcHomaKey,
    RpcPolo,
    RpcTcp,
    RpcKernelTcp,
    TonicTcp,
    TonicHoma,
    DirectHoma,
    Quinn,
}

impl Row {
    pub(crate) const ALL: [Self; 10] = [
        Self::Tcp,
        Self::RpcHoma,
        Self::RpcHomaKey,
        Self::RpcPolo,
        Self::RpcTcp,
        Self::RpcKernelTcp,
        Self::TonicTcp,
        Self::TonicHoma,
        Self::DirectHoma,
        Self::Quinn,
    ];

    pub(crate) fn named(name: &str) -> Result<Self, Error> {
        let found = Self::ALL.into_iter().find(|row| row.name() == name);
        let names = || Self::ALL.map(Self::name).join(", ");
        found.ok_or_else(|| format!("there is no row {name}; there are {}", names()).into())
    }

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::RpcHoma => "rpc-homa",
            Self::RpcHomaKey => "rpc-homa-key",
            Self::RpcPolo => "rpc-polo",
            Self::RpcTcp => "rpc-tcp",
            Self::RpcKernelTcp => "rpc-kernel-tcp",
            Self::TonicTcp => "tonic-tcp",
            Self::TonicHoma => "tonic-homa",
            Self::DirectHoma => "direct-homa",
            Self::Quinn => "quinn",
        }
    }

    pub(crate) const fn what(self) -> &'static str {
        match self {
            Self::Tcp => "TCP, plain tokio",
            Self::RpcHoma => "rpc over homa",
            Self::RpcHomaKey => "homa (encrypted)",
            Self::RpcPolo => "rpc over polo",
            Self::RpcTcp => "rpc over tcp in UDP",
            Self::RpcKernelTcp => "rpc over kernel TCP",
            Self::TonicTcp => "tonic over TCP",
            Self::TonicHoma => "tonic, HTTP/2, homa",
            Self::DirectHoma => "tonic, direct, homa",
            Self::Quinn => "quinn (encrypted)",
        }
    }

    /// Creates a node, for the rows that use this library.
    pub(crate) fn node(self, link_gbps: u64) -> Result<Node, Error> {
        let link = Rate::from_gbps(link_gbps);
        let transport = match self {
            Self::RpcPolo => Transport::polo(link),
            Self::RpcTcp => Transport::tcp(link),
            Self::RpcKernelTcp => Transport::kernel_tcp(None),
            _ => Transport::homa(link),
        };
        let mut config = NodeConfig::new(transport, ([127, 0, 0, 1], 0).into());
        if self == Self::RpcHomaKey {
            config = config.key(Key::derive(&[7; 32])?);
        }
        Ok(Node::bind(config.allow("127.0.0.1".parse()?))?)
    }
}

/// A client that has connected to its server.
pub(crate) enum Session {
    Tcp(SocketAddr),
    Rpc { client: Client, peer: Peer, streams: bool },
    Tonic(EchoClient<Channel>),
    Direct(EchoClient<direct::Channel<DialPeer>>),
    Quinn(quinn::Connection, #[expect(dead_code, reason = "kept open")] quinn::Endpoint),
}

impl Session {
    pub(crate) async fn open(row: Row, place: &str, link_gbps: u64) -> Result<Self, Error> {
        let (address, certificate) = place.split_once(' ').unwrap_or((place, ""));
        let address: SocketAddr = address.parse()?;
        Ok(match row {
            Row::Tcp => Self::Tcp(address),
            Row::RpcHoma | Row::RpcHomaKey | Row::RpcPolo | Row::RpcTcp | Row::RpcKernelTcp => {
                let node = row.node(link_gbps)?;
                let streams = row != Row::RpcPolo;
                Self::Rpc { client: node.client(), peer: node.peer(address), streams }
            }
            Row::TonicTcp => {
                let endpoint =
                    tonic::transport::Endpoint::from_shared(format!("http://{address}"))?
                        .initial_stream_window_size(rackweave_grpc::http2::STREAM_WINDOW)
                        .initial_connection_window_size(rackweave_grpc::http2::CONNECTION_WINDOW)
                        .max_frame_size(rackweave_grpc::http2::FRAME)
                        .tcp_nodelay(true);
                Self::Tonic(EchoClient::new(endpoint.connect().await?))
            }
            Row::TonicHoma => {
                let node = row.node(link_gbps)?;
                Self::Tonic(EchoClient::new(rackweave_grpc::connect(&node, address)))
            }
            Row::DirectHoma => {
                let node = row.node(link_gbps)?;
                Self::Direct(EchoClient::new(rackweave_grpc::connect_directly(&node, address)))
            }
            Row::Quinn => {
                let (connection, endpoint) = quinn_connection(address, certificate).await?;
                Self::Quinn(connection, endpoint)
            }
        })
    }

    pub(crate) const fn has_streams(&self) -> bool {
        !matches!(self, Self::Rpc { streams: false, .. })
    }

    /// Creates a client that makes calls one after the other.
    pub(crate) async fn caller(&self) -> Result<Caller, Error> {
        Ok(match self {
            Self::Tcp(address) => {
                let stream = TcpStream::connect(address).await?;
                stream.set_nodelay(true)?;
                Caller::Tcp(stream)
            }
            Self::Rpc { client, peer, .. } => Caller::Rpc(client.clone(), *peer),
            Self::Tonic(client) => Caller::Tonic(client.clone()),
            Self::Direct(client) => Caller::Direct(client.clone()),
            Self::Quinn(connection, _) => Caller::Quinn(connection.clone()),
        })
    }

    /// Sends over one stream for a span of time; returns how many bytes the server reports as received.
    pub(crate) async fn bulk(&self, time: Duration) -> Result<u64, Error> {
        let piece = Bytes::from(vec![7; PIECE]);
        let end = Instant::now() + time;
        let pieces = std::iter::repeat(piece).take_while(move |_| Instant::now() < end);
        match self {
            Self::Tcp(address) => {
                let mut stream = TcpStream::connect(address).await?;
                stream.write_u32(u32::MAX).await?;
                for piece in pieces {
                    stream.write_all(&piece).await?;
                }
                stream.shutdown().await?;
                Ok(stream.read_u64().await?)
            }
            Self::Rpc { client, peer, .. } => {
                let mut stream = client.stream(*peer)?;
                for piece in pieces {
                    stream.write_chunk(piece).await?;
                }
                stream.shutdown().await?;
                Ok(stream.read_u64().await?)
            }
            Self::Tonic(client) => {
                let blobs = tokio_stream::iter(pieces.map(|bytes| Blob { bytes }));
                Ok(client.clone().upload(blobs).await?.into_inner().bytes)
            }
            Self::Direct(client) => {
                let blobs = tokio_stream::iter(pieces.map(|bytes| Blob { bytes }));
                Ok(client.clone().upload(blobs).await?.into_inner().bytes)
            }
            Self::Quinn(connection, _) => {
                let (mut send, mut receive) = connection.open_bi().await?;
                send.write_all(&[1]).await?;
                for piece in pieces {
                    send.write_chunk(piece).await?;
                }
                send.finish()?;
                Ok(receive.read_u64().await?)
            }
        }
    }
}

pub(crate) enum Caller {
    Tcp(TcpStream),
    Rpc(Client, Peer),
    Tonic(EchoClient<Channel>),
    Direct(EchoClient<direct::Channel<DialPeer>>),
    Quinn(quinn::Connection),
}

impl Caller {
    /// Sends bytes and returns the echo.
    pub(crate) async fn call(&mut self, bytes: Bytes) -> Result<Bytes, Error> {
        match self {
            Self::Tcp(stream) => {
                let mut request = Vec::with_capacity(4 + bytes.len());
                request.extend_from_slice(&(bytes.len() as u32).to_be_bytes());
                request.extend_from_slice(&bytes);
                stream.write_all(&request).await?;
                let mut answer = vec![0; bytes.len() + 4];
                stream.read_exact(&mut answer).await?;
                Ok(Bytes::from(answer).slice(4..))
            }
            Self::Rpc(client, peer) => Ok(client.call(*peer, bytes).await?),
            Self::Tonic(client) => Ok(client.once(Blob { bytes }).await?.into_inner().bytes),
            Self::Direct(client) => Ok(client.once(Blob { bytes }).await?.into_inner().bytes),
            Self::Quinn(connection) => {
                let (mut send, mut receive) = connection.open_bi().await?;
                let mut request = [Bytes::from_static(&[0]), bytes];
                send.write_all_chunks(&mut request).await?;
                send.finish()?;
                Ok(receive.read_to_end(16 << 20).await?.into())
            }
        }
    }
}

/// Returns a configuration whose windows do not throttle.
pub(crate) fn quinn_transport() -> Arc<quinn::TransportConfig> {
    let mut transport = quinn::TransportConfig::default();
    transport.stream_receive_window((8u32 << 20).into());
    transport.receive_window((64u32 << 20).into());
    transport.send_window(64 << 20);
    transport.max_concurrent_bidi_streams(1024u32.into());
    Arc::new(transport)
}

async fn quinn_connection(
    address: SocketAddr,
    certificate: &str,
) -> Result<(quinn::Connection, quinn::Endpoint), Error> {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(unhex(certificate)?.into())?;
    let mut config = quinn::ClientConfig::with_root_certificates(Arc::new(roots))?;
    config.transport_config(quinn_transport());
    let mut endpoint = quinn::Endpoint::client(([127, 0, 0, 1], 0).into())?;
    endpoint.set_default_client_config(config);
    Ok((endpoint.connect(address, "localhost")?.await?, endpoint))
}

fn unhex(text: &str) -> Result<Vec<u8>, Error> {
    let bytes = text.as_bytes().chunks(2);
    let bytes = bytes.map(|pair| Ok(u8::from_str_radix(std::str::from_utf8(pair)?, 16)?));
    bytes.collect()
}
