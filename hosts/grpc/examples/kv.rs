//! One service over three carriers: TCP, Homa with HTTP/2, and Homa directly. Only two lines differ: how a channel is
//! created, and where the server's connections come from.
//!
//! `cargo run -p rackweave-grpc --example kv`

mod services;

use rackweave_grpc::direct::{self, Limits};
use rackweave_grpc::http2;
use rackweave_rpc::{Node, NodeConfig, Rate, Transport};
use services::key_value_client::KeyValueClient;
use services::key_value_server::KeyValueServer;
use services::{Entry, Key, Store};
use tonic::transport::server::TcpIncoming;

type Error = Box<dyn std::error::Error + Send + Sync>;

/// Creates a Homa node with a port of its own.
fn node() -> Result<Node, Error> {
    let config = NodeConfig::new(Transport::homa(Rate::from_gbps(10)), ([127, 0, 0, 1], 0).into());
    Ok(Node::bind(config.allow("127.0.0.1".parse()?))?)
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    let store = Store::default();
    let service = KeyValueServer::new(store);

    // Over TCP, as with plain tonic.
    let incoming = TcpIncoming::bind(([127, 0, 0, 1], 0).into())?;
    let address = incoming.local_addr()?;
    let server = tonic::transport::Server::builder().add_service(service.clone());
    tokio::spawn(server.serve_with_incoming(incoming));
    let channel = tonic::transport::Endpoint::from_shared(format!("http://{address}"))?;
    let mut client = KeyValueClient::new(channel.connect().await?);
    client.put(Entry { key: "loom".into(), value: "weave".into() }).await?;
    show("TCP", client.get(Key { key: "loom".into() }).await?.into_inner());

    // HTTP/2 over one stream of Homa.
    let served = node()?;
    let incoming = rackweave_grpc::incoming(served.server());
    tokio::spawn(http2::server().add_service(service.clone()).serve_with_incoming(incoming));
    let mut client = KeyValueClient::new(rackweave_grpc::connect(&node()?, served.local_addr()));
    show("Homa, HTTP/2", client.get(Key { key: "loom".into() }).await?.into_inner());

    // Each request and response is one message of Homa.
    let served = node()?;
    let server = direct::Server::new(service, Limits::default());
    tokio::spawn(server.serve_node(served.server(), std::future::pending()));
    let channel = rackweave_grpc::connect_directly(&node()?, served.local_addr());
    let mut client = KeyValueClient::new(channel);
    show("Homa, directly", client.get(Key { key: "loom".into() }).await?.into_inner());

    let status = client.get(Key { key: "rack".into() }).await.unwrap_err();
    println!("{:?}: {}", status.code(), status.message());
    Ok(())
}

fn show(way: &str, entry: Entry) {
    println!("{way:<16}{} -> {}", entry.key, String::from_utf8_lossy(&entry.value));
}
