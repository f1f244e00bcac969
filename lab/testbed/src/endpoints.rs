//! The transports of a host, and which of them a scenario's streams use.

use rackweave_lab::scenario::{PointSpec, TcpBy};
use rackweave_transport::TransportConfig;
use rackweave_workload::{Exchange, StreamMode};

/// One transport of each host, with its own sockets.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct EndpointSpec {
    pub(super) transport: TransportConfig,
    /// The congestion control of the kernel's TCP, if the endpoint uses it; `None` for Rackweave's transports.
    pub(super) kernel: Option<&'static str>,
    /// How requests that arrive here outside a channel are answered.
    pub(super) exchange: Exchange,
    /// Whether its messages are unary RPCs on channels, which begin with a header.
    pub(super) unary_channels: bool,
}

/// The transports of each host, and the index of the transport that each stream uses.
#[derive(Clone, Debug)]
pub(super) struct EndpointSpecs {
    pub(super) endpoints: Vec<EndpointSpec>,
    pub(super) of_stream: Vec<u8>,
}

impl EndpointSpecs {
    /// As in the simulator, streams with equal transports share one. But a message outside a channel does not indicate
    /// its stream, so streams whose requests are answered differently need separate transports.
    pub(super) fn of(point: &PointSpec, overlay: bool) -> Self {
        let mut endpoints: Vec<EndpointSpec> = Vec::new();
        let streams = point.config.streams.iter().zip(&point.kernel_tcp);
        let of_stream = streams.map(|(stream, tcp)| {
            let kernel = tcp.filter(|congestion| uses_kernel_tcp(point, overlay, congestion));
            let streaming = stream.workload.streaming;
            let unary_channels =
                streaming.is_some_and(|streaming| streaming.mode == StreamMode::Unary);
            // On a channel each message names its stream, which determines how it is answered.
            let exchange =
                if streaming.is_some() { Exchange::OneWay } else { stream.workload.exchange };
            let fits = |endpoint: &EndpointSpec| {
                endpoint.transport == stream.transport
                    && endpoint.kernel == kernel
                    && endpoint.unary_channels == unary_channels
                    && (endpoint.exchange == exchange
                        || endpoint.exchange == Exchange::OneWay
                        || exchange == Exchange::OneWay)
            };
            match endpoints.iter().position(fits) {
                Some(number) => {
                    if exchange != Exchange::OneWay {
                        endpoints[number].exchange = exchange;
                    }
                    number as u8
                }
                None => {
                    let transport = stream.transport.clone();
                    endpoints.push(EndpointSpec { transport, kernel, exchange, unary_channels });
                    (endpoints.len() - 1) as u8
                }
            }
        });
        let of_stream = of_stream.collect();
        Self { endpoints, of_stream }
    }
}

/// Returns whether a TCP of a scenario is run by the kernel.
pub(super) fn uses_kernel_tcp(point: &PointSpec, overlay: bool, congestion: &str) -> bool {
    if overlay || point.testbed.tcp == TcpBy::Machine {
        return false;
    }
    congestion != "dctcp" || kernel_has(congestion)
}

/// Returns whether this kernel has the congestion control.
pub(crate) fn kernel_has(congestion: &str) -> bool {
    let path = "/proc/sys/net/ipv4/tcp_available_congestion_control";
    let known = std::fs::read_to_string(path).unwrap_or_default();
    known.split_whitespace().any(|name| name == congestion)
}
