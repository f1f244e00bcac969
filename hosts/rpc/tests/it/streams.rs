//! Streams between nodes of one process.

use std::future::IntoFuture as _;
use std::io::ErrorKind;
use std::time::Duration;

use crate::common::{PATIENCE, bytes, config, drained, homa, node, streaming};
use rackweave_rpc::{Bytes, CallError, Incoming, Node, Server, Stream};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

async fn accept(server: &Server) -> Stream {
    match timeout(PATIENCE, server.next()).await.unwrap() {
        Some(Incoming::Stream(stream)) => stream,
        other => panic!("{other:?}"),
    }
}

/// Returns both ends of a stream on which one byte was sent in each direction.
async fn connected(here: &Node, there: &Node) -> (Stream, Stream) {
    let server = there.server();
    let mut near = here.client().stream(here.peer(there.local_addr())).unwrap();
    near.write_all(b"?").await.unwrap();
    let mut far = accept(&server).await;
    assert_eq!(far.read_u8().await.unwrap(), b'?');
    far.write_all(b"!").await.unwrap();
    assert_eq!(near.read_u8().await.unwrap(), b'!');
    (near, far)
}

#[tokio::test]
async fn an_echo_returns_what_it_read() {
    for (name, transport) in streaming() {
        let (here, there) = (node(&transport), node(&transport));
        let server = there.server();
        let echo = tokio::spawn(async move {
            let (mut read, mut write) = accept(&server).await.split();
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
        let sent = bytes(3_000_000);
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
        drop((writes.await.unwrap(), read));
        assert_eq!(echo.await.unwrap(), 3_000_013);
        drained(&here).await;
        drained(&there).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_quarter_of_a_gigabyte_in_bounded_memory() {
    const TOTAL: usize = 256 << 20;
    for (name, transport) in streaming().into_iter().filter(|t| ["homa", "tcp"].contains(&t.0)) {
        let (here, there) = (node(&transport), node(&transport));
        let server = there.server();
        let reads = tokio::spawn(async move {
            let mut stream = accept(&server).await;
            let mut hash = blake3::Hasher::new();
            while let Some(chunk) = stream.read_chunk().await.unwrap() {
                hash.update(&chunk);
            }
            stream.write_all(hash.finalize().as_bytes()).await.unwrap();
            stream.shutdown().await.unwrap();
        });
        let mut stream = here.client().stream(here.peer(there.local_addr())).unwrap();
        let mut hash = blake3::Hasher::new();
        let mut left = TOTAL;
        let mut most = 0;
        for block in 0_u64.. {
            let mut chunk = bytes(300_007.min(left));
            for (byte, salt) in chunk.iter_mut().zip(block.to_le_bytes()) {
                *byte ^= salt;
            }
            left -= chunk.len();
            hash.update(&chunk);
            stream.write_chunk(chunk).await.unwrap();
            let (near, far) = (here.stats(), there.stats());
            most = most.max(near.sending_bytes).max(far.arriving_bytes).max(far.unread_bytes);
            if left == 0 {
                break;
            }
        }
        stream.shutdown().await.unwrap();
        let mut theirs = Vec::new();
        stream.read_to_end(&mut theirs).await.unwrap_or_else(|e| panic!("{name}: {e}"));
        assert!(theirs == hash.finalize().as_bytes(), "{name}");
        assert!(most < 9 << 20, "{name}: {most} bytes were held");
        reads.await.unwrap();
        drop(stream);
        drained(&here).await;
        drained(&there).await;
    }
}

#[tokio::test]
async fn who_does_not_read_stops_who_writes() {
    for (name, transport) in streaming() {
        let (here, there) = (node(&transport), node(&transport));
        let (mut near, mut far) = connected(&here, &there).await;
        let piece = Bytes::from(bytes(50_000));
        let mut written = 0;
        loop {
            // This much is always accepted, however long that takes.
            let goes_on = written <= 1 << 20;
            let patience = if goes_on { PATIENCE } else { Duration::from_millis(300) };
            if timeout(patience, near.write_chunk(piece.clone())).await.is_err() {
                assert!(!goes_on, "{name}: {written}");
                break;
            }
            written += piece.len();
            assert!(written < 16 << 20, "{name}: it is not stopped");
        }
        let held = there.stats().unread_bytes + here.stats().sending_bytes;
        assert!(held < 16 << 20, "{name}: {held}");
        // Other streams are not affected.
        let (mut other, mut its) = connected(&here, &there).await;
        other.write_all(b"x").await.unwrap();
        assert_eq!(its.read_u8().await.unwrap(), b'x');
        // Slow reading lets the writer continue. The piece that was being written may have arrived in part.
        let mut read = 0;
        while read < written {
            let chunk = timeout(PATIENCE, far.read_chunk()).await.unwrap().unwrap().unwrap();
            for (i, byte) in chunk.iter().enumerate().step_by(997) {
                assert_eq!(*byte, piece[(read + i) % piece.len()], "{name}");
            }
            read += chunk.len();
        }
        drop((near, far, other, its));
        drained(&here).await;
        drained(&there).await;
    }
}

#[tokio::test]
async fn a_half_open_stream_lives_on() {
    // The transports are tested at the same time, because each test waits for long.
    let mut tasks = JoinSet::new();
    for (name, transport) in streaming() {
        tasks.spawn(async move {
            let (here, there) = (node(&transport), node(&transport));
            let (mut near, mut far) = connected(&here, &there).await;
            near.shutdown().await.unwrap();
            assert!(far.read_chunk().await.unwrap().is_none(), "{name}");
            let late = near.write_all(b"too late").await.unwrap_err();
            assert_eq!(late.kind(), ErrorKind::BrokenPipe, "{name}");
            // The wait is longer than the transports wait for a silent peer.
            sleep(Duration::from_millis(2_500)).await;
            far.write_all(&bytes(100_000)).await.unwrap();
            far.shutdown().await.unwrap();
            let mut got = Vec::new();
            near.read_to_end(&mut got).await.unwrap_or_else(|e| panic!("{name}: {e}"));
            assert!(got == bytes(100_000), "{name}");
            drop((near, far));
            drained(&here).await;
            drained(&there).await;
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
}

/// The peer is known by an earlier stream, so that the first data of the second one are all that opens it.
#[tokio::test]
async fn a_stream_may_be_written_long_after_it_was_opened() {
    let mut tasks = JoinSet::new();
    for (name, transport) in streaming() {
        tasks.spawn(async move {
            let (here, there) = (node(&transport), node(&transport));
            let (near, far) = connected(&here, &there).await;
            let server = there.server();
            let mut late = here.client().stream(here.peer(there.local_addr())).unwrap();
            sleep(Duration::from_millis(1_200)).await;
            late.write_all(b"late").await.unwrap_or_else(|e| panic!("{name}: {e}"));
            late.shutdown().await.unwrap();
            let mut got = Vec::new();
            accept(&server).await.read_to_end(&mut got).await.unwrap();
            assert_eq!(got, b"late", "{name}");
            drop((near, far, late));
            drained(&here).await;
            drained(&there).await;
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
}

#[tokio::test]
async fn what_is_dropped_half_written_is_an_error_there() {
    for (name, transport) in streaming() {
        let (here, there) = (node(&transport), node(&transport));
        let (mut near, mut far) = connected(&here, &there).await;
        near.write_all(b"half").await.unwrap();
        near.acknowledged().await.unwrap();
        drop(near);
        let mut got = Vec::new();
        let error = timeout(PATIENCE, far.read_to_end(&mut got)).await.unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{name}: {error}");
        assert_eq!(got, b"half", "{name}");
        let error = far.write_chunk("x").await.unwrap_err();
        assert!(is_reset(&error), "{name}: {error}");
        drop(far);
        // The same with the roles exchanged.
        let (mut near, far) = connected(&here, &there).await;
        far.reset();
        let error = timeout(PATIENCE, near.read_chunk()).await.unwrap().unwrap_err();
        assert!(is_reset(&error), "{name}: {error}");
        drop(near);
        drained(&here).await;
        drained(&there).await;
    }
}

/// A TCP reset does not distinguish a peer that has cancelled from one that has lost its state.
fn is_reset(error: &CallError) -> bool {
    matches!(error, CallError::Reset { .. } | CallError::PeerForgot { .. })
}

#[tokio::test]
async fn what_is_dropped_after_shutdown_arrives() {
    for (name, transport) in streaming() {
        let (here, there) = (node(&transport), node(&transport));
        let (mut near, mut far) = connected(&here, &there).await;
        near.write_chunk(bytes(900_000)).await.unwrap();
        near.shutdown().await.unwrap();
        drop(near);
        let mut got = Vec::new();
        far.read_to_end(&mut got).await.unwrap_or_else(|e| panic!("{name}: {e}"));
        assert!(got == bytes(900_000), "{name}");
        far.shutdown().await.unwrap();
        drop(far);
        drained(&here).await;
        drained(&there).await;
        // A writer that continues gets an error, because its data is not read.
        let (mut near, mut far) = connected(&here, &there).await;
        near.shutdown().await.unwrap();
        drop(near);
        let error = timeout(PATIENCE, async {
            loop {
                if let Err(error) = far.write_chunk(bytes(10_000)).await {
                    return error;
                }
            }
        });
        let error = error.await.unwrap();
        assert!(is_reset(&error), "{name}: {error}");
    }
}

#[tokio::test]
async fn a_dropped_reader_does_not_stop_the_writer() {
    for (name, transport) in streaming() {
        let (here, there) = (node(&transport), node(&transport));
        let (near, mut far) = connected(&here, &there).await;
        let (read, mut write) = near.split();
        drop(read);
        // This is more than any window holds, and it is discarded.
        far.write_chunk(bytes(8 << 20)).await.unwrap();
        write.write_all(b"still here").await.unwrap();
        write.shutdown().await.unwrap();
        far.shutdown().await.unwrap();
        let mut got = Vec::new();
        far.read_to_end(&mut got).await.unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(got, b"still here", "{name}");
        drop((write, far));
        drained(&here).await;
        drained(&there).await;
    }
}

#[tokio::test]
async fn a_stream_ends_at_its_deadline() {
    // The transports are tested at the same time, because each test waits for long.
    let mut tasks = JoinSet::new();
    for (name, transport) in streaming() {
        tasks.spawn(async move {
            let (here, there) = (node(&transport), node(&transport));
            let server = there.server();
            let peer = here.peer(there.local_addr());
            // The other end must have been notified by then.
            let limit = Duration::from_secs(2);
            let began = Instant::now();
            let mut near = here.client().stream_with_deadline(peer, limit).unwrap();
            near.write_all(b"x").await.unwrap();
            let mut far = accept(&server).await;
            assert_eq!(far.read_u8().await.unwrap(), b'x');
            let error = timeout(PATIENCE, near.read_chunk()).await.unwrap().unwrap_err();
            assert!(matches!(error, CallError::StreamDeadline), "{name}: {error}");
            assert!(began.elapsed() >= limit, "{name}");
            timeout(PATIENCE, far.read_chunk()).await.unwrap().unwrap_err();
            drop((near, far));
            drained(&here).await;
            drained(&there).await;
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
}

#[tokio::test]
async fn a_stream_without_a_server_is_reset() {
    for (name, transport) in streaming() {
        let (here, there) = (node(&transport), node(&transport));
        let mut near = here.client().stream(here.peer(there.local_addr())).unwrap();
        near.write_all(b"x").await.unwrap();
        let error = timeout(PATIENCE, near.read_chunk()).await.unwrap().unwrap_err();
        assert!(is_reset(&error), "{name}: {error}");
        // A stream that was not used does not concern the other end.
        drop(here.client().stream(here.peer(there.local_addr())).unwrap());
        drop(near);
        drained(&here).await;
        drained(&there).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_hundred_streams_and_as_many_resets() {
    for (name, transport) in streaming() {
        let (here, there) = (node(&transport), node(&transport));
        let server = there.server();
        tokio::spawn(async move {
            while let Some(Incoming::Stream(stream)) = server.next().await {
                tokio::spawn(async move {
                    let (mut read, mut write) = stream.split();
                    let _ = tokio::io::copy(&mut read, &mut write).await;
                    let _ = write.shutdown().await;
                });
            }
        });
        let mut tasks = JoinSet::new();
        let peer = here.peer(there.local_addr());
        for i in 0..100_usize {
            let client = here.client();
            tasks.spawn(async move {
                let sent = bytes(1000 + i * 1357);
                let mut doomed = client.stream(peer).unwrap();
                doomed.write_chunk(sent.clone()).await.unwrap();
                let mut stream = client.stream(peer).unwrap();
                stream.write_chunk(sent.clone()).await.unwrap();
                if i % 2 == 0 {
                    doomed.reset();
                }
                stream.shutdown().await.unwrap();
                let mut got = Vec::new();
                stream.read_to_end(&mut got).await?;
                assert!(got == sent);
                Ok::<_, std::io::Error>(())
            });
        }
        while let Some(done) = tasks.join_next().await {
            done.unwrap().unwrap_or_else(|e| panic!("{name}: {e}"));
        }
        drained(&here).await;
        drained(&there).await;
    }
}

#[tokio::test]
async fn streams_and_calls_share_the_memory() {
    let transport = homa();
    let here = Node::bind(config(&transport).send_memory(300_000)).unwrap();
    let there = node(&transport);
    let (mut near, mut far) = connected(&here, &there).await;
    let (mut other, mut its) = connected(&here, &there).await;
    let reads = tokio::spawn(async move {
        let (mut one, mut two) = (Vec::new(), Vec::new());
        let (a, b) = tokio::join!(far.read_to_end(&mut one), its.read_to_end(&mut two));
        (a.unwrap(), b.unwrap())
    });
    let (a, b) = tokio::join!(
        async {
            for _ in 0..40 {
                near.write_chunk(bytes(100_000)).await?;
            }
            near.shutdown().await?;
            Ok::<_, std::io::Error>(())
        },
        async {
            for _ in 0..40 {
                other.write_all(&bytes(100_000)).await?;
            }
            other.shutdown().await
        }
    );
    a.and(b).unwrap();
    assert_eq!(reads.await.unwrap(), (4_000_000, 4_000_000));
}

#[tokio::test]
async fn shutdown_lets_streams_end_and_fails_those_that_do_not() {
    let transport = homa();
    let here = Node::bind(config(&transport).grace(Duration::from_millis(100))).unwrap();
    let there = node(&transport);
    let (near, far) = connected(&here, &there).await;
    let (mut read, mut write) = near.split();
    write.write_chunk(bytes(100_000)).await.unwrap();
    timeout(PATIENCE, here.shutdown()).await.unwrap();
    let error = read.read_chunk().await.unwrap_err();
    assert!(matches!(error, CallError::NodeStopped(None)), "{error}");
    let error = write.write_chunk("x").await.unwrap_err();
    assert!(matches!(error, CallError::NodeStopped(None)), "{error}");
    drop(far);
}

#[tokio::test]
async fn a_full_socket_is_waited_for() {
    for (name, transport) in streaming() {
        let here = Node::bind(config(&transport).socket_buffer(1)).unwrap();
        let there = node(&transport);
        let (mut near, mut far) = connected(&here, &there).await;
        let writes = tokio::spawn(async move {
            for _ in 0..100 {
                near.write_chunk(bytes(100_000)).await?;
            }
            near.shutdown().await?;
            Ok::<_, std::io::Error>(near)
        });
        let mut got = Vec::new();
        let reads = timeout(PATIENCE, far.read_to_end(&mut got)).await.unwrap();
        assert_eq!(reads.unwrap_or_else(|e| panic!("{name}: {e}")), 10_000_000);
        assert!(got.chunks(100_000).all(|chunk| chunk == bytes(100_000)), "{name}");
        drop((writes.await.unwrap().unwrap(), far));
        drained(&here).await;
    }
}

/// The memory for what waits to be sent is taken by a call, whose answer frees it.
#[tokio::test]
async fn a_writer_that_waits_for_memory_goes_on_when_a_call_is_answered() {
    for (name, transport) in streaming() {
        let here = Node::bind(config(&transport).send_memory(100_000)).unwrap();
        let there = node(&transport);
        let (mut near, mut far) = connected(&here, &there).await;
        near.acknowledged().await.unwrap();
        let server = there.server();
        let peer = here.peer(there.local_addr());
        let call = tokio::spawn(here.client().call(peer, bytes(100_000)).into_future());
        let Some(Incoming::Request(request)) = timeout(PATIENCE, server.next()).await.unwrap()
        else {
            panic!("{name}");
        };
        let write = tokio::spawn(async move {
            near.write_chunk(bytes(50_000)).await.unwrap();
            near
        });
        sleep(Duration::from_millis(50)).await;
        request.respond("done").await.unwrap();
        call.await.unwrap().unwrap_or_else(|error| panic!("{name}: {error}"));
        let written = timeout(Duration::from_secs(20), write).await;
        let _near = written.unwrap_or_else(|_| panic!("{name}: it waits for ever")).unwrap();
        let mut got = vec![0; 50_000];
        far.read_exact(&mut got).await.unwrap();
        assert!(got == bytes(50_000), "{name}");
    }
}
