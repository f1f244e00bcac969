//! Streams between nodes of one process.

mod common;

use common::{node, streaming};
use rackweave_rpc::Incoming;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

#[tokio::test]
async fn an_echo_returns_what_it_read() {
    for (name, transport) in streaming() {
        let (here, there) = (node(&transport), node(&transport));
        let server = there.server();
        let echo = tokio::spawn(async move {
            let Some(Incoming::Stream(stream)) = server.next().await else { panic!() };
            let (mut read, mut write) = stream.split();
            let bytes = tokio::io::copy(&mut read, &mut write).await.unwrap();
            write.shutdown().await.unwrap();
            bytes
        });
        let peer = here.peer(there.local_addr());
        let mut stream = here.client().stream(peer).unwrap();
        stream.write_all(b"half a word, ").await.unwrap();
        let mut first = [0; 13];
        stream.read_exact(&mut first).await.unwrap();
        assert_eq!(&first, b"half a word, ", "{name}");
        let sent: Vec<u8> = (0..3_000_000_u32).map(|i| (i ^ i >> 9) as u8).collect();
        let (mut read, mut write) = stream.split();
        let writes = tokio::spawn({
            let sent = sent.clone();
            async move {
                write.write_chunk(sent).await.unwrap();
                write.shutdown().await.unwrap();
                write
            }
        });
        let mut got = Vec::new();
        read.read_to_end(&mut got).await.unwrap();
        assert!(got == sent, "{name}: {} bytes", got.len());
        writes.await.unwrap();
        assert_eq!(echo.await.unwrap(), 3_000_013);
    }
}
