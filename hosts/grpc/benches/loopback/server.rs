//! The server side of each row: it echoes calls, and counts the bytes of streams.

use std::io::{BufRead as _, Write as _};

use bytes::Bytes;
use rackweave_grpc::direct::{self, Limits};
use rackweave_grpc::http2;
use rackweave_rpc::Incoming;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tonic::transport::server::TcpIncoming;

use crate::rows::{Row, quinn_transport};
use crate::services::Parrot;
use crate::services::echo_server::EchoServer;
use crate::{Cpu, Error};

/// Serves one row until standard input ends. Each input line requests the CPU time.
pub(crate) async fn serve(row: Row, link_gbps: u64) -> Result<(), Error> {
    std::thread::spawn(|| {
        for _ in std::io::stdin().lock().lines().map_while(Result::ok) {
            let cpu = Cpu::now();
            say(&format!("{} {}", cpu.used, cpu.waited));
        }
        std::process::exit(0);
    });
    let local = ([127, 0, 0, 1], 0);
    let parrot = EchoServer::new(Parrot::default());
    match row {
        Row::Tcp => {
            let listener = TcpListener::bind(std::net::SocketAddr::from(local)).await?;
            say(&listener.local_addr()?.to_string());
            loop {
                let (stream, _) = listener.accept().await?;
                tokio::spawn(tcp(stream));
            }
        }
        Row::RpcHoma | Row::RpcHomaKey | Row::RpcPolo | Row::RpcTcp | Row::RpcKernelTcp => {
            let node = row.node(link_gbps)?;
            let server = node.server();
            say(&node.local_addr().to_string());
            while let Some(came) = server.next().await {
                tokio::spawn(rpc(came));
            }
        }
        Row::TonicTcp => {
            let incoming = TcpIncoming::bind(local.into())?.with_nodelay(Some(true));
            say(&incoming.local_addr()?.to_string());
            http2::server().add_service(parrot).serve_with_incoming(incoming).await?;
        }
        Row::TonicHoma => {
            let node = row.node(link_gbps)?;
            let incoming = rackweave_grpc::incoming(node.server());
            say(&node.local_addr().to_string());
            http2::server().add_service(parrot).serve_with_incoming(incoming).await?;
        }
        Row::DirectHoma => {
            let node = row.node(link_gbps)?;
            say(&node.local_addr().to_string());
            let routes = tonic::service::Routes::new(parrot).prepare();
            let server = direct::Server::new(routes, Limits::default());
            server.serve_node(node.server(), std::future::pending()).await;
        }
        Row::Quinn => quinn().await?,
    }
    Ok(())
}

fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

async fn tcp(mut stream: TcpStream) -> Result<(), Error> {
    stream.set_nodelay(true)?;
    let mut buffer = Vec::new();
    loop {
        let length = stream.read_u32().await?;
        if length == u32::MAX {
            let mut bytes = 0u64;
            buffer.resize(crate::PIECE, 0);
            loop {
                match stream.read(&mut buffer).await? {
                    0 => break,
                    read => bytes += read as u64,
                }
            }
            stream.write_u64(bytes).await?;
            return Ok(());
        }
        if length as usize > 16 << 20 {
            return Err("too long".into());
        }
        buffer.resize(4 + length as usize, 0);
        buffer[..4].copy_from_slice(&length.to_be_bytes());
        stream.read_exact(&mut buffer[4..]).await?;
        stream.write_all(&buffer).await?;
    }
}

async fn rpc(came: Incoming) -> Result<(), Error> {
    match came {
        Incoming::Request(mut request) => {
            let bytes = request.take_bytes();
            request.respond(bytes).await?;
        }
        Incoming::Stream(mut stream) => {
            let mut bytes = 0;
            while let Some(chunk) = stream.read_chunk().await? {
                bytes += chunk.len() as u64;
            }
            stream.write_u64(bytes).await?;
            stream.shutdown().await?;
        }
        _ => {}
    }
    Ok(())
}

async fn quinn() -> Result<(), Error> {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()])?;
    let key = quinn::rustls::pki_types::PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
    let certificate = made.cert.der().clone();
    let hex: String = certificate.iter().map(|byte| format!("{byte:02x}")).collect();
    let mut config = quinn::ServerConfig::with_single_cert(vec![certificate], key.into())?;
    config.transport_config(quinn_transport());
    let endpoint = quinn::Endpoint::server(config, ([127, 0, 0, 1], 0).into())?;
    say(&format!("{} {hex}", endpoint.local_addr()?));
    while let Some(connecting) = endpoint.accept().await {
        let connection = connecting.await?;
        tokio::spawn(async move {
            while let Ok((send, receive)) = connection.accept_bi().await {
                tokio::spawn(quinn_stream(send, receive));
            }
        });
    }
    Ok(())
}

async fn quinn_stream(
    mut send: quinn::SendStream,
    mut receive: quinn::RecvStream,
) -> Result<(), Error> {
    if receive.read_u8().await? == 1 {
        let mut bytes = 0u64;
        while let Some(chunk) = receive.read_chunk(1 << 20, true).await? {
            bytes += chunk.bytes.len() as u64;
        }
        send.write_u64(bytes).await?;
    } else {
        let bytes = receive.read_to_end(16 << 20).await?;
        send.write_chunk(Bytes::from(bytes)).await?;
    }
    send.finish()?;
    Ok(())
}
