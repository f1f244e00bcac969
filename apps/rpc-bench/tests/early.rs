//! Runs of a benchmark whose first requests go before the handshake.

use rackweave_core::Span;
use rackweave_linux::Key;
use rackweave_rpc_bench::{
    Bench, BenchConfig, BenchError, Load, Mode, ServeConfig, Server, Setup, Sizes, Transport,
};

fn setup(transport: Transport) -> Setup {
    Setup { key: Some(Key::derive(&[7; 32]).unwrap()), ..Setup::new(transport) }
}

fn bench(setup: Setup, server: std::net::SocketAddr) -> BenchConfig {
    let sizes: Sizes = "100".parse().unwrap();
    BenchConfig {
        setup,
        servers: vec![server],
        sizes: sizes.0,
        mode: Mode::Echo,
        load: Load::Unloaded { each: 20 },
        ports: 1,
        outstanding: 1,
        duration: None,
        total: None,
        deadline: Span::from_secs(60),
        idempotent: true,
        check: true,
        dump: None,
        seed: 1,
    }
}

#[test]
fn the_first_call_of_the_next_run_is_early() {
    let folder = tempfile::tempdir().unwrap();
    for transport in [Transport::Homa, Transport::Polo] {
        let serve = ServeConfig {
            setup: Setup { accept_early: true, ..setup(transport) },
            listen: "127.0.0.1:0".parse().unwrap(),
            ports: 1,
            allow: Vec::new(),
        };
        let server = Server::start(&serve).unwrap();
        let tickets = Some(folder.path().join(transport.name()));
        for early in [false, true, true] {
            let mut config = bench(
                Setup { tickets: tickets.clone(), ..setup(transport) },
                server.addresses()[0],
            );
            config.check(false).unwrap();
            let summary = Bench::start(config).unwrap().finish().unwrap();
            assert!(summary.is_good(), "{summary:?}");
            assert_eq!(summary.first.map(|(_, early)| early), Some(early));
            assert_eq!(summary.all.calls(), 20);
        }
        server.stop().unwrap();
    }
}

#[test]
fn tickets_need_a_key_and_idempotent_requests() {
    let server = "127.0.0.1:1".parse().unwrap();
    let tickets = Some(std::path::PathBuf::from("tickets"));
    let with = Setup { tickets: tickets.clone(), ..setup(Transport::Homa) };
    let mut config = BenchConfig { idempotent: false, ..bench(with, server) };
    assert!(matches!(config.check(false), Err(BenchError::TicketsNotIdempotent)));
    let without_key = Setup { tickets, ..Setup::new(Transport::Homa) };
    let error = Bench::start(bench(without_key, server)).unwrap_err();
    assert!(matches!(error, BenchError::EarlyWithoutKey), "{error}");
}
