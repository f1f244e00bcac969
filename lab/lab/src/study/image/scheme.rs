//! The schemes of an image: `[transport]` of a scenario with `[workload.image]`.

use rackweave_core::{Rate, Span};
use rackweave_scenario::de::{self, DeError};
use rackweave_scenario::item::About;
use rackweave_scenario::keys::{Chosen, divide, keys, schemes};
use rackweave_scenario::problem::Problem;
use rackweave_scenario::transport::{self, TcpKeys};
use rackweave_scenario::tree::{Origin, Table};
use rackweave_scenario::values::{AboveZero, AtMost, Unit, Whole};
use rackweave_sim::config::FabricConfig;
use rackweave_swp2p::frisbee::{ClientConfig, PaceConfig};
use rackweave_swp2p::intake::Expand;
use rackweave_swp2p::order::Order;
use rackweave_swp2p::p2p::node::Carrier;
use rackweave_swp2p::{Shape, directory, directory::Policy, p2p};
use rackweave_wire::frisbee::BLOCK_BYTES;
use serde::Deserialize;

use super::keys::key;
use super::{ImageConfig, P2pScheme, Redirects, Scheme, hosts_per_rack};
use crate::study::unknown_scheme;

schemes! {
    /// The names of the schemes.
    enum Name {
        Frisbee: [FrisbeeKeys] = About {
            name: "frisbee",
            description: "an image to many: the server multicasts the blocks that clients ask for",
            profiles: &[],
            sources: &["USENIX 2003"],
        };
        Swp2p: [Swp2pKeys, RequestKeys, TcpKeys] = About {
            name: "swp2p",
            description: "an image to many: requests are redirected to clients that have the chunk",
            profiles: &[],
            sources: &["Selvam, thesis, 2020"],
        };
        Unicast: [RequestKeys, TcpKeys] = About {
            name: "image-unicast",
            description: "an image to many: the server sends all chunks itself, over TCP",
            profiles: &[],
            sources: &["RFC 9293"],
        };
    }
    unknown: |text| unknown_scheme::<ImageConfig>(text, "no scheme for images")
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum OrderName {
    Random,
    InOrder,
}

impl From<OrderName> for Order {
    fn from(name: OrderName) -> Self {
        match name {
            OrderName::Random => Self::Random,
            OrderName::InOrder => Self::InOrder,
        }
    }
}

keys! {
    /// Frisbee's keys. A missing key has the default of the authors' code.
    struct FrisbeeKeys for ClientConfig {
        /// Chunks that a client holds before expansion; that it requests ahead; most incomplete
        /// ones with which it requests more. Default: 64; 2; 8.
        buffers: Whole<1, 65_534, u16> => buffers,
        /// Chunks that a client holds before expansion; that it requests ahead; most incomplete
        /// ones with which it requests more. Default: 64; 2; 8.
        read_ahead: Whole<1, 65_534, u16> => read_ahead,
        /// Chunks that a client holds before expansion; that it requests ahead; most incomplete
        /// ones with which it requests more. Default: 64; 2; 8.
        in_progress: Whole<1, 65_534, u16> => in_progress,
        /// Time that it waits for a packet; such times in succession before it requests again.
        /// Default: `"30 ms"`; 3.
        receive_timeout: AboveZero<Span> => receive_timeout,
        /// Time that it waits for a packet; such times in succession before it requests again.
        /// Default: `"30 ms"`; 3.
        idle_timeouts: Whole<1, 1_000, u32> => idle_timeouts,
        /// Time between two requests for a chunk, of any client. `"0 s"`: none. Default: `"1 s"`.
        // Zero disables the rule.
        redo_delay: Unit<Span> => redo_delay,
        /// It notes the requests of others. Default: true.
        snoop: bool => snoop,
        /// `"random"` or `"in-order"`. Default: `"random"`.
        order: OrderName => order,
        /// Rate of the server on the link. Sets `gap`.
        rate: AboveZero<Rate>,
        /// Blocks of a burst; time between bursts (`"0 s"`: no pacing). Default: 16; `"2 ms"`.
        burst: Whole<1, 65_536, u32>,
        /// Blocks of a burst; time between bursts (`"0 s"`: no pacing). Default: 16; `"2 ms"`.
        // Zero disables pacing.
        gap: Unit<Span>,
        /// Bursts shrink after loss. Default: false.
        dynamic: bool,
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Assist {
    #[default]
    Switch,
    Server,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum PolicyName {
    RoundRobin,
    LeastLoaded,
}

impl From<PolicyName> for Policy {
    fn from(name: PolicyName) -> Self {
        match name {
            PolicyName::RoundRobin => Self::RoundRobin,
            PolicyName::LeastLoaded => Self::LeastLoaded,
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum RequestOrder {
    Paper,
    #[default]
    Windows,
    Random,
    InOrder,
}

keys! {
    /// SWP2P's keys: who redirects requests, and to whom.
    struct Swp2pKeys for directory::Config {
        /// Who redirects requests: `"switch"` or `"server"`. Default: `"switch"`.
        assist: Assist,
        /// Holder that is chosen: `"round-robin"`, the slides', or `"least-loaded"`. Default:
        /// `"least-loaded"`.
        policy: PolicyName => policy,
        /// Leaf-spine: holders in the rack are preferred. false needs `assist = "server"`. Default:
        /// true.
        prefer_rack: bool,
        /// Waiting clients that may follow one another before a holder; 0 in the slides. Default:
        /// 2.
        // Zero is the paper's rule: only clients that have reported a chunk serve it.
        pending: AtMost<16, u8> => pending,
        /// Time that a finished client still serves (Rackweave's inference). Default: `"0 s"`.
        linger: Unit<Span>,
        /// Control packets that a switch handles (0: no limit), and most that wait. Default: 0;
        /// 1000.
        // Zero if the program runs in the switch's data plane.
        switch_requests_per_second: AtMost<1_000_000_000, u32>,
        /// Control packets that a switch handles (0: no limit), and most that wait. Default: 0;
        /// 1000.
        switch_queue: AtMost<1_000_000, u32>,
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum CarrierName {
    #[default]
    Tcp,
    Fluid,
}

keys! {
    /// The keys of the schemes whose clients request chunks, in addition to TCP's.
    struct RequestKeys for p2p::client::Config {
        /// `"paper"`: round the image, from a start by client. `"windows"`: so in each window in
        /// turn. `"random"`. `"in-order"`. Default: `"windows"`.
        order: RequestOrder,
        /// Chunks of a window; most consecutive ones in a request. Default: 32; 1.
        window: Whole<1, 65_535, u32>,
        /// Chunks of a window; most consecutive ones in a request. Default: 32; 1.
        batch: Whole<1, 4_096, u16> => batch,
        /// A client's outstanding chunks. Default: 16.
        outstanding: Whole<1, 4_096, u16> => outstanding,
        /// Chunks, and time, after which a client reports. Default: 1; `"100 ms"`.
        report_every: Whole<1, 65_535, u16> => report_every,
        /// Chunks, and time, after which a client reports. Default: 1; `"100 ms"`.
        report_interval: AboveZero<Span> => report_interval,
        /// Least time between requests for a chunk. Frisbee's is 1 s. Default: `"250 ms"`.
        retry: AboveZero<Span> => retry,
        /// Chunks that a host, and the server, sends at a time. 0: no limit. Default: 8; `uploads`.
        // Zero for no limit, as with a sender thread for each peer.
        uploads: AtMost<65_535, u16> => serve.uploads,
        /// Chunks that a host, and the server, sends at a time. 0: no limit. Default: 8; `uploads`.
        server_uploads: AtMost<65_535, u16>,
        /// What carries chunks: `"tcp"` or `"fluid"`; least time between computations of its rates.
        /// Default: `"tcp"`; `"0 s"`.
        carrier: CarrierName,
        /// What carries chunks: `"tcp"` or `"fluid"`; least time between computations of its rates.
        /// Default: `"tcp"`; `"0 s"`.
        fluid_interval: Unit<Span>,
    }
}

pub(crate) enum Keys {
    Frisbee(Box<FrisbeeKeys>),
    Requests { peers: Swp2pKeys, requests: RequestKeys, tcp: Box<transport::Chosen> },
}

impl Keys {
    fn read(name: Name, table: &Table, origin: Origin) -> Result<Self, DeError> {
        let peers = match name {
            Name::Frisbee => return Ok(Self::Frisbee(Box::new(de::from_table(table, origin)?))),
            Name::Swp2p => Swp2pKeys::NAMES,
            Name::Unicast => &[],
        };
        let [peers, requests, tcp] = divide(table, [peers, RequestKeys::NAMES, TcpKeys::NAMES])?;
        Ok(Self::Requests {
            peers: de::from_table(&peers, origin)?,
            requests: de::from_table(&requests, origin)?,
            tcp: Box::new(transport::read_tcp(tcp, origin)?),
        })
    }
}

/// Bytes of a block on a link: block, headers, preamble and gap.
const BLOCK_ON_LINK: u32 = BLOCK_BYTES + 90;

/// Returns the kernel's name of the congestion control, if the scheme uses TCP.
pub(crate) fn kernel_tcp(chosen: &Chosen<Name>) -> Option<&'static str> {
    match &chosen.keys {
        Keys::Requests { tcp, .. } => tcp.kernel_tcp(),
        Keys::Frisbee(_) => None,
    }
}

/// Resolves the configuration, with defaults for missing keys.
pub(super) fn resolve(
    chosen: &Chosen<Name>,
    expand: Expand,
    image: Shape,
    fabric: &FabricConfig,
    clients: usize,
) -> Result<Scheme, Problem> {
    match &chosen.keys {
        Keys::Frisbee(keys) => frisbee(chosen, keys, expand, image),
        Keys::Requests { peers, requests, tcp } => {
            let base = P2pScheme::over(tcp.tcp()?, expand);
            Ok(Scheme::P2p(Box::new(p2p(chosen, base, peers, requests, fabric, clients)?)))
        }
    }
}

fn frisbee(
    chosen: &Chosen<Name>,
    keys: &FrisbeeKeys,
    expand: Expand,
    image: Shape,
) -> Result<Scheme, Problem> {
    if image.chunk_bytes() != Shape::FRISBEE_CHUNK {
        return Err(Problem::new(key("chunk_size"), "Frisbee's chunks have 1 MiB"));
    }
    if !image.bytes().is_multiple_of(u64::from(Shape::FRISBEE_CHUNK)) {
        let message = "Frisbee's images consist of whole chunks of 1 MiB";
        return Err(Problem::new(key("size"), message));
    }
    let mut client = ClientConfig::new(expand);
    keys.apply(&mut client);
    let mut pace = PaceConfig::default();
    if let Some(burst) = keys.burst {
        pace.burst = burst.0;
    }
    match (keys.rate, keys.gap) {
        (Some(_), Some(_)) => {
            return Err(chosen.bad("gap", "`rate` determines the gap: give one of the two"));
        }
        (Some(rate), None) => pace = pace.with_rate(rate.0, BLOCK_ON_LINK),
        (None, Some(gap)) => pace.gap = gap.0,
        (None, None) => {}
    }
    pace.dynamic = keys.dynamic.unwrap_or(false);
    Ok(Scheme::Frisbee { client, pace })
}

fn p2p(
    chosen: &Chosen<Name>,
    base: P2pScheme,
    peers: &Swp2pKeys,
    requests: &RequestKeys,
    fabric: &FabricConfig,
    clients: usize,
) -> Result<P2pScheme, Problem> {
    let order = requests.order.unwrap_or_default();
    if order != RequestOrder::Windows && requests.window.is_some() {
        return Err(chosen.bad("window", "`window` has no meaning without order = \"windows\""));
    }
    let mut client = p2p::client::Config {
        linger: peers.linger.map_or(Span::ZERO, |linger| linger.0),
        ..p2p::client::Config::default()
    };
    requests.apply(&mut client);
    let mut serve = client.serve;
    if let Some(uploads) = requests.server_uploads {
        serve.uploads = uploads.0;
    }
    if client.batch > client.outstanding {
        let message = format!(
            "a batch has at most as many chunks as are on request: `outstanding` is {}",
            client.outstanding
        );
        return Err(chosen.bad("batch", message));
    }
    client.order = match (order, requests.window) {
        (RequestOrder::Paper, _) => Order::Rotation,
        (RequestOrder::Windows, Some(window)) => Order::Windows(window.0),
        (RequestOrder::Windows, None) => client.order,
        (RequestOrder::Random, _) => Order::Random,
        (RequestOrder::InOrder, _) => Order::InOrder,
    };
    let hosts_per_rack = hosts_per_rack(fabric);
    let mut directory = directory::Config { hosts_per_rack, ..directory::Config::default() };
    peers.apply(&mut directory);
    let assist = peers.assist.unwrap_or_default();
    if peers.prefer_rack == Some(false) {
        if assist == Assist::Switch && hosts_per_rack.is_some() {
            let message = "a rack's switch knows the clients of its rack only, and prefers them: \
                           `prefer_rack = false` needs assist = \"server\"";
            return Err(chosen.bad("prefer_rack", message));
        }
        directory.hosts_per_rack = None;
    }
    let per_second = peers.switch_requests_per_second;
    if assist == Assist::Server {
        let given = [
            ("switch_requests_per_second", per_second.is_some()),
            ("switch_queue", peers.switch_queue.is_some()),
        ];
        if let Some((key, _)) = given.iter().find(|(_, is_given)| *is_given) {
            let message = format!("`{key}`: with assist = \"server\" no switch takes part");
            return Err(chosen.bad(key, message));
        }
    }
    let carrier = match requests.carrier.unwrap_or_default() {
        CarrierName::Tcp if requests.fluid_interval.is_some() => {
            let message = "only flows have rates that are computed: carrier = \"fluid\"";
            return Err(chosen.bad("fluid_interval", message));
        }
        CarrierName::Tcp => base.carrier.clone(),
        CarrierName::Fluid => Carrier::Fluid,
    };
    let per_second = per_second.map_or(0, |rate| rate.0);
    if per_second == 0 && peers.switch_queue.is_some() {
        let message = "a switch has a queue only with `switch_requests_per_second` above 0";
        return Err(chosen.bad("switch_queue", message));
    }
    Ok(P2pScheme {
        redirects: match (chosen.name, assist) {
            (Name::Unicast, _) => Redirects::Nobody,
            (_, Assist::Switch) => Redirects::Switches {
                per_second,
                queue: peers.switch_queue.map_or(DEFAULT_QUEUE, |queue| queue.0),
            },
            (_, Assist::Server) => Redirects::Server,
        },
        directory,
        expected: if order == RequestOrder::Paper { clients as u32 } else { 0 },
        client,
        serve,
        carrier,
        fluid_interval: requests.fluid_interval.map_or(Span::ZERO, |interval| interval.0),
        ..base
    })
}

/// The packets that wait for a switch's processor: Linux's receive queue (`net.core.netdev_max_backlog`).
const DEFAULT_QUEUE: u32 = 1_000;
