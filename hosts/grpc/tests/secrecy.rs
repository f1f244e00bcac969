//! What a host on the path sees of calls between nodes with a key.

#[path = "../examples/services/mod.rs"]
mod services;

use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use rackweave_grpc::direct::{self, Limits};
use rackweave_grpc::http2;
use rackweave_rpc::{Key, Node, NodeConfig, Rate, Transport};
use services::key_value_client::KeyValueClient;
use services::key_value_server::KeyValueServer;
use services::{Entry, Store};
use tonic::service::Routes;

const METHOD: &[u8] = b"rackweave.example.KeyValue";
const NAME: &[u8] = b"the name of an entry";
const VALUE: &[u8] = b"what the entry contains, which nobody else shall read";

/// Forwards datagrams between one client and a server, and records them.
struct Proxy {
    address: SocketAddr,
    recorded: Arc<Mutex<Vec<Vec<u8>>>>,
    ended: Arc<AtomicBool>,
}

impl Proxy {
    fn start(server: SocketAddr) -> Self {
        let [inner, outer] = [0, 1].map(|_| UdpSocket::bind("127.0.0.1:0").unwrap());
        for socket in [&inner, &outer] {
            socket.set_read_timeout(Some(Duration::from_micros(200))).unwrap();
        }
        let address = outer.local_addr().unwrap();
        let recorded = Arc::<Mutex<Vec<Vec<u8>>>>::default();
        let ended = Arc::<AtomicBool>::default();
        let (tape, end) = (Arc::clone(&recorded), Arc::clone(&ended));
        std::thread::spawn(move || {
            let (mut client, mut buffer) = (None, [0; 65_536]);
            while !end.load(Ordering::Relaxed) {
                if let Ok((length, from)) = outer.recv_from(&mut buffer) {
                    client = Some(from);
                    tape.lock().unwrap().push(buffer[..length].to_vec());
                    inner.send_to(&buffer[..length], server).unwrap();
                }
                if let (Ok((length, _)), Some(client)) = (inner.recv_from(&mut buffer), client) {
                    tape.lock().unwrap().push(buffer[..length].to_vec());
                    outer.send_to(&buffer[..length], client).unwrap();
                }
            }
        });
        Self { address, recorded, ended }
    }

    /// In how many datagrams these bytes are.
    fn shows(&self, needle: &[u8]) -> usize {
        let recorded = self.recorded.lock().unwrap();
        let has = |bytes: &&Vec<u8>| {
            bytes.windows(needle.len().max(1)).any(|window| window.starts_with(needle))
        };
        recorded.iter().filter(has).count()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
    }
}

fn node(key: Option<&Key>) -> Node {
    let transport = Transport::homa(Rate::from_gbps(10));
    let config = NodeConfig::new(transport, "127.0.0.1:0".parse().unwrap())
        .allow("127.0.0.1".parse().unwrap());
    Node::bind(match key {
        Some(key) => config.key(key.clone()),
        None => config,
    })
    .unwrap()
}

/// Puts an entry and gets it, and returns in how many datagrams the method's service, the name and the value were readable.
async fn exchange(direct: bool, key: Option<&Key>) -> [usize; 3] {
    let (server, client) = (node(key), node(key));
    let proxy = Proxy::start(server.local_addr());
    let routes = Routes::new(KeyValueServer::new(Store::default()));
    let served = server.clone();
    let serving = tokio::spawn(async move {
        if direct {
            let server = direct::Server::new(routes, Limits::default());
            server.serve_node(served.server(), std::future::pending()).await;
        } else {
            let incoming = rackweave_grpc::incoming(served.server());
            http2::server().serve_with_incoming(routes, incoming).await.unwrap();
        }
    });
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let entry = Entry { key: text(NAME), value: Bytes::from_static(VALUE) };
    let key = services::Key { key: text(NAME) };
    let got = if direct {
        let channel = rackweave_grpc::connect_directly(&client, proxy.address);
        let mut store = KeyValueClient::new(channel);
        store.put(entry.clone()).await.unwrap();
        store.get(key).await
    } else {
        let mut store = KeyValueClient::new(rackweave_grpc::connect(&client, proxy.address));
        store.put(entry.clone()).await.unwrap();
        store.get(key).await
    };
    assert_eq!(got.unwrap().into_inner(), entry);
    serving.abort();
    assert!(proxy.shows(&[]) > 5, "the calls went through the proxy");
    [METHOD, NAME, VALUE].map(|needle| proxy.shows(needle))
}

#[test]
fn neither_methods_nor_messages_are_readable_with_a_key() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let key = Key::derive(&[7; 32]).unwrap();
    runtime.block_on(async {
        for direct in [true, false] {
            let plain = exchange(direct, None).await;
            // HTTP/2 writes the path in the Huffman code of HPACK (RFC 7541, section 5.2).
            assert!(plain[0] >= 2 || !direct, "{plain:?}");
            assert!(plain[1] >= 2 && plain[2] >= 2, "the test would notice them: {plain:?}");
            assert_eq!(exchange(direct, Some(&key)).await, [0; 3], "direct: {direct}");
        }
    });
}
