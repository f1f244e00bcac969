//! Endpoints on loopback that the test drives.

pub(crate) mod proxy;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use rackweave_core::{HostId, Rate, Span, Time};
use rackweave_linux::{Clock, Endpoint, EndpointConfig, Peers};
use rackweave_transport::{TransportConfig, homa, tcp};

/// How long a test waits for an expected event. It is long because the test may compete with others for the processor.
pub(crate) const PATIENCE: Span = Span::from_secs(60);

/// Returns every transport that supports requests.
pub(crate) fn transports() -> Vec<(&'static str, TransportConfig)> {
    let link = Rate::from_gbps(10);
    let homa = |config| TransportConfig::Homa(Arc::new(config));
    let tcp = |config| {
        // A half-open stream must be detected within a test's patience.
        TransportConfig::Tcp(Arc::new(tcp::Config { idle_timeout: Span::from_secs(2), ..config }))
    };
    let mut transports = vec![
        ("homa", homa(homa::Config::fabric(link, 60_000))),
        ("homa linux", homa(homa::Config::linux(link))),
        ("leverage-homa", homa(homa::Config::leverage(link))),
        ("tcp", tcp(tcp::Config::tcp())),
        ("dctcp", tcp(tcp::Config::dctcp())),
    ];
    transports.extend(others().into_iter().map(|config| (config.name(), config)));
    transports
}

/// Returns the transports besides Homa and TCP that support requests.
pub(crate) fn others() -> Vec<TransportConfig> {
    let mut examples = TransportConfig::examples(Rate::from_gbps(10));
    examples.retain(|config| !["homa", "tcp", "dctcp", "datagram"].contains(&config.name()));
    examples
}

/// Returns the same transports with timeouts so long that no peer is declared dead only because its thread was not
/// scheduled.
pub(crate) fn patient() -> Vec<(&'static str, TransportConfig)> {
    let patient = |(name, transport): (_, TransportConfig)| (name, transport.patient(SILENCE));
    transports().into_iter().map(patient).collect()
}

/// No peer is silent for this long, even on an overloaded machine.
const SILENCE: Span = Span::from_secs(10);

pub(crate) fn leverage() -> TransportConfig {
    let config = homa::Config::leverage(Rate::from_gbps(10));
    TransportConfig::Homa(Arc::new(config)).patient(SILENCE)
}

pub(crate) fn local() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

/// Admits every address of this machine.
pub(crate) fn open_to_local() -> Peers {
    let allow = ["127.0.0.0/8", "::1"].map(|network| network.parse().unwrap()).to_vec();
    Peers::Direct { hosts: BTreeMap::new(), allow }
}

pub(crate) fn config(host: u32, transport: &TransportConfig, clock: Clock) -> EndpointConfig {
    let config = EndpointConfig::new(HostId(host), local(), open_to_local(), transport);
    EndpointConfig { clock, ..config }
}

/// Creates two endpoints; each admits the other.
pub(crate) fn pair(transport: &TransportConfig) -> [Endpoint; 2] {
    let clock = Clock::start();
    [0, 1].map(|host| Endpoint::new(config(host, transport, clock)).unwrap())
}

/// Drives all endpoints until `done` returns true; fails after [`PATIENCE`].
pub(crate) fn drive(ends: &mut [Endpoint], mut done: impl FnMut(&mut [Endpoint]) -> bool) {
    let clock = ends[0].clock();
    let until = clock.now() + PATIENCE;
    loop {
        let mut next = Time::MAX;
        for end in &mut *ends {
            next = next.min(end.turn().unwrap().unwrap_or(Time::MAX));
        }
        if done(ends) {
            return;
        }
        let now = clock.now();
        let stats: Vec<_> = ends.iter().map(Endpoint::stats).collect();
        assert!(now < until, "{stats:?}");
        let last = ends.len() - 1;
        ends[last].wait(Some(next.min(now + Span::from_us(100)))).unwrap();
    }
}

/// Drives all endpoints for a span of time.
pub(crate) fn run_for(ends: &mut [Endpoint], span: Span) {
    let until = ends[0].clock().now() + span;
    drive(ends, |ends| ends[0].clock().now() >= until);
}

/// Returns bytes that depend on their offset and, through `salt`, on the message.
pub(crate) fn bytes(salt: u64, len: usize) -> Bytes {
    let salt = rackweave_core::rng::mix(salt);
    (0..len as u64).map(|i| (i * 7 + i / 251 + (salt >> (i % 8 * 8))) as u8).collect()
}
