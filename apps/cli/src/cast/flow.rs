//! Derives the division of a stream into packets from the arguments: payload, rate, parity.

use std::net::SocketAddr;

use rackweave_core::Rate;
use rackweave_linux::sys::route_to;
use rackweave_orca::flow::FlowConfig;
use rackweave_orca::parity::MAX_CELLS;
use rackweave_wire::orca::{self, Data, Header, Label, Labelled, Parity, Session};

/// The length of the IPv4 and UDP headers in bytes.
const IP_UDP: u32 = 28;

/// The largest payload in bytes: beyond it a lost packet costs more, and throughput no longer grows.
const MAX_PAYLOAD: u32 = 8900;

/// The parameters of a flow that the user can set.
pub(super) struct FlowArgs {
    pub(super) mtu: Option<u32>,
    pub(super) rate: Option<Rate>,
    pub(super) fec: u8,
}

/// Parses `--fec`: "off", or the number of packets of a block.
pub(super) fn fec_block(text: &str) -> Result<u8, String> {
    match text.parse() {
        _ if text == "off" => Ok(0),
        Ok(block @ 2..=MAX_CELLS) => Ok(block),
        _ => Err(format!("expected \"off\" or a number from 2 to {MAX_CELLS}")),
    }
}

impl FlowArgs {
    /// Returns the flow's configuration for these receivers: the payload fits the smallest MTU of the routes to them. It is an error if
    /// there is a route to none.
    pub(super) fn flow(
        &self,
        to: &[SocketAddr],
        keyed: bool,
        words: u8,
    ) -> Result<FlowConfig, String> {
        // A host without a route costs the others nothing: it is reported like one that does not answer.
        let mut mtu = None;
        let mut unreachable = None;
        for to in to {
            match route_to(*to) {
                Ok((_, route)) => mtu = Some(mtu.unwrap_or(u32::MAX).min(route)),
                Err(error) => unreachable = Some(format!("{to}: no route to this host: {error}")),
            }
        }
        let mtu = match (self.mtu.or(mtu), unreachable) {
            (Some(mtu), _) => mtu,
            (None, Some(error)) => return Err(error),
            (None, None) => u32::MAX,
        };
        // For a single receiver a retransmission is always as cheap as parity.
        let fec_block = if to.len() > 1 { self.fec } else { 0 };
        let header = header_bytes(keyed, words, false);
        let longest = header_bytes(keyed, words, fec_block > 0);
        let payload = (mtu.max(256) - IP_UDP - longest).min(MAX_PAYLOAD);
        Ok(FlowConfig {
            payload: payload as u16,
            overhead: (IP_UDP + header + 38) as u16,
            max_rate: self.rate,
            fec_block,
            ..FlowConfig::default()
        })
    }
}

/// Returns the header length in bytes of a data packet with a label of `words` words, or of a parity packet if
/// `parity`.
fn header_bytes(keyed: bool, words: u8, parity: bool) -> u32 {
    let of = Parity { index: 0, data: 0, parity: 0, last: 0 };
    let data = Data {
        labelled: Labelled::Host,
        label: Label(0),
        session: Session(0),
        offset: 0,
        len: 0,
        repair: false,
        end: false,
        parity: parity.then_some(of),
    };
    // The label may be a rack label, which has at least the words for 64 ports.
    let words = words.max(2);
    match keyed {
        true => orca::sealed_header_bytes(&data, words),
        false => orca::header_bytes(&Header::Data(data), words, false),
    }
}
