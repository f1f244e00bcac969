//! Parity: computed from a source when sending, and used to reconstruct missing cells when receiving.

use std::collections::BTreeMap;

use bytes::Bytes;
use rackweave_core::Time;
use rackweave_orca::flow::Recovery;
use rackweave_orca::parity::{self, Repair};
use rackweave_wire::orca::{Parity, Session};

use super::{Engine, EnginePlatform};
use crate::sink::Drain;
use crate::source::{Payload, Source, SourceError};

/// Computes the parity of a block that begins at `offset`, in cells of `payload` bytes.
pub(super) fn encode(
    source: &mut dyn Source,
    offset: u64,
    payload: u16,
    of: Parity,
) -> Result<Bytes, SourceError> {
    let mut bytes = vec![0; usize::from(payload)];
    let mut cell = Payload::new();
    for number in 0..of.data {
        let len = if number + 1 == of.data { of.last } else { payload };
        let from = offset + u64::from(number) * u64::from(payload);
        cell.clear();
        source.read(from, usize::from(len), &mut cell)?;
        let mut at = 0;
        for piece in &cell {
            parity::add(&mut bytes[at..], of.index, number, piece);
            at += piece.len();
        }
    }
    Ok(bytes.into())
}

/// The parities received for blocks with missing cells.
#[derive(Debug, Default)]
pub(super) struct Parities {
    blocks: BTreeMap<u64, Block>,
}

#[derive(Debug)]
struct Block {
    end: u64,
    parities: Vec<(u8, Box<[u8]>)>,
}

impl Parities {
    pub(super) fn keep(&mut self, block: u64, end: u64, index: u8, payload: &[u8]) {
        let kept = self.blocks.entry(block).or_insert(Block { end, parities: Vec::new() });
        kept.end = end;
        kept.parities.push((index, payload.into()));
    }

    /// Drops the parities of blocks that end at or before an offset.
    pub(super) fn forget_below(&mut self, upto: u64) {
        while self.blocks.first_entry().is_some_and(|block| block.get().end <= upto) {
            self.blocks.pop_first();
        }
    }

    /// Reconstructs the missing cells of a block and stores them; returns `false` if that is not possible.
    fn recover(&mut self, of: &Recovery, drain: &mut Drain) -> bool {
        let Some(kept) = self.blocks.remove(&of.block) else { return false };
        let wanted = kept.parities.iter().filter(|(index, _)| of.parities >> index & 1 == 1);
        let parities = wanted.map(|(index, bytes)| (*index, &bytes[..]));
        let Some(mut repair) = Repair::new(of.missing, parities) else { return false };
        let payload = u64::from(of.payload);
        let cells = (of.end - of.block).div_ceil(payload) as u8;
        let place = |cell: u8| {
            let from = of.block + u64::from(cell) * payload;
            (from, (of.end - from).min(payload) as usize)
        };
        for cell in (0..cells).filter(|cell| of.missing >> cell & 1 == 0) {
            let (from, len) = place(cell);
            let Some(bytes) = drain.read(from, len) else { return false };
            repair.add(cell, &bytes);
        }
        repair.finish().iter().all(|(cell, bytes)| {
            let (from, len) = place(*cell);
            drain.put(from, &bytes[..len.min(bytes.len())])
        })
    }
}

impl<P: EnginePlatform> Engine<P> {
    pub(super) fn recover(&mut self, now: Time, session: Session, of: &Recovery) {
        let stored = match self.incoming.get_mut(&session) {
            Some(incoming) => incoming.parities.recover(of, &mut incoming.drain),
            None => false,
        };
        self.stats.recovered += if stored { u64::from(of.missing.count_ones()) } else { 0 };
        self.host.recovered(now, session, of.block, stored);
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread::JoinHandle;
    use std::time::Duration;

    use rackweave_core::Rate;
    use rackweave_orca::flow::FlowConfig;
    use rackweave_orca::host::Spread;
    use rackweave_wire::orca::{self, GROUP, Header, Reason};

    use super::super::tests::{Receiving, SECRET, completed, content, drive, file};
    use super::super::{EngineConfig, EngineEvent, SendView};
    use super::*;
    use crate::source::Files;

    /// Emulates a multicast network: forwards the group's datagrams to each receiver, with losses, and forges parity on
    /// request.
    fn group(
        socket: UdpSocket,
        to: Vec<SocketAddr>,
        forges: bool,
        stop: Arc<AtomicBool>,
    ) -> JoinHandle<u64> {
        std::thread::spawn(move || {
            socket.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
            let (mut buffer, mut parities) = (vec![0; 1 << 16], 0);
            let mut rng = rackweave_core::Rng::stream(1, 0, 0, "loss");
            while !stop.load(Ordering::Relaxed) {
                let Ok((len, _)) = socket.recv_from(&mut buffer) else { continue };
                let mut bytes = buffer[..len].to_vec();
                if let Ok(seen) = orca::glance(&bytes, None)
                    && let Header::Data(data) = seen.header
                    && data.parity.is_some()
                {
                    parities += 1;
                    if forges {
                        let mut payload = bytes.split_off(seen.header_end);
                        payload[7] ^= 1;
                        // Without a key a forger can compute the check.
                        if orca::decode(&buffer[..len], None).is_ok() {
                            bytes.clear();
                            orca::encode_header(&seen.header, 1, None, &[&payload], &mut bytes);
                        }
                        bytes.extend_from_slice(&payload);
                    }
                }
                for receiver in &to {
                    if !rng.chance(0.03) {
                        let _ = socket.send_to(&bytes, receiver);
                    }
                }
            }
            parities
        })
    }

    /// Sends a file to four receivers over lossy multicast. Returns `None` if the loopback interface has no multicast.
    fn cast(
        path: std::path::PathBuf,
        secret: Option<&[u8]>,
        forges: bool,
    ) -> Option<(Vec<Receiving>, SendView, u64)> {
        rackweave_testing::needs!(Multicast, None);
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        socket.join_multicast_v4(&Ipv4Addr::from(GROUP), &Ipv4Addr::LOCALHOST).unwrap();
        let group_port = socket.local_addr().unwrap().port();
        let receivers: Vec<Receiving> = (0..4).map(|_| Receiving::start(secret, None)).collect();
        let to: Vec<SocketAddr> = receivers.iter().map(|it| it.address).collect();
        let stop = Arc::new(AtomicBool::new(false));
        let network = group(socket, to.clone(), forges, Arc::clone(&stop));
        let config = EngineConfig {
            interface: Ipv4Addr::LOCALHOST,
            group_loops: true,
            group_port,
            secret: secret.map(<[u8]>::to_vec),
            ..EngineConfig::new("127.0.0.1:0".parse().unwrap())
        };
        let mut engine = Engine::new(config, None).unwrap();
        let hosts: Vec<_> = to.iter().map(|to| engine.add_peer(*to)).collect();
        // The length is odd, so that cells cross the boundaries of records.
        let flow = FlowConfig {
            payload: 1399,
            max_rate: Some(Rate(300_000_000)),
            ..FlowConfig::default()
        };
        let source = Box::new(Files::new(&[path]).unwrap());
        engine.open(source, &hosts, Spread::Multicast, flow).unwrap();
        let view = drive(&mut engine, None);
        stop.store(true, Ordering::Relaxed);
        Some((receivers, view, network.join().unwrap()))
    }

    #[test]
    fn what_is_lost_is_computed() {
        let from = tempfile::tempdir().unwrap();
        let path = file(from.path(), "x", 8_000_001);
        for secret in [None, Some(SECRET)] {
            let Some((receivers, view, parities)) = cast(path.clone(), secret, false) else {
                return;
            };
            assert_eq!(completed(&view), 4);
            assert!(view.summary.parity > 0 && parities > 0);
            for receiver in receivers {
                assert!(receiver.received());
                assert!(receiver.read("x") == content(8_000_001), "as they were sent");
                let (_, stats) = receiver.crash();
                assert!(stats.recovered > 0, "{stats:?}");
            }
        }
    }

    #[test]
    fn with_a_key_forged_parity_costs_time_only() {
        let from = tempfile::tempdir().unwrap();
        let path = file(from.path(), "x", 8_000_001);
        let Some((receivers, view, parities)) = cast(path, Some(SECRET), true) else { return };
        assert!(parities > 0 && completed(&view) == 4, "{parities}");
        for receiver in receivers {
            assert!(receiver.received());
            assert!(receiver.read("x") == content(8_000_001));
            let (_, stats) = receiver.crash();
            assert!(stats.unopened > 0, "{stats:?}");
        }
    }

    /// A forger of packets can spoil a stream but, because of the hashes, never produces a file with wrong bytes. Once it has stopped, the
    /// same file arrives, from where each receiver was.
    #[test]
    fn forged_parity_is_found() {
        let from = tempfile::tempdir().unwrap();
        let path = file(from.path(), "x", 8_000_001);
        let Some((receivers, view, parities)) = cast(path.clone(), None, true) else { return };
        assert!(parities > 0 && completed(&view) < 4);
        let (mut failed, mut kept) = (0, 0);
        for receiver in &receivers {
            let end = receiver.events.iter().find(|event| {
                matches!(event, EngineEvent::Received { .. } | EngineEvent::ReceiveFailed { .. })
            });
            match end.unwrap() {
                EngineEvent::ReceiveFailed { reason, error, .. } => {
                    assert_eq!(reason, Reason::Damaged);
                    assert!(error.unwrap().is_damage());
                    assert!(!receiver.folder.path().join("x").exists());
                    failed += 1;
                    kept +=
                        receiver.folder.path().join("x.part").metadata().map_or(0, |it| it.len());
                }
                _ => assert!(receiver.read("x") == content(8_000_001), "without any parity"),
            }
        }
        assert!(failed > 0);
        let config = EngineConfig::new("127.0.0.1:0".parse().unwrap());
        let mut engine = Engine::new(config, None).unwrap();
        let hosts: Vec<_> = receivers.iter().map(|it| engine.add_peer(it.address)).collect();
        let source = Box::new(Files::new(&[path]).unwrap());
        engine.open(source, &hosts, Spread::Unicast, FlowConfig::default()).unwrap();
        let view = drive(&mut engine, None);
        assert_eq!(completed(&view), 4, "{view:?}");
        let began: u64 = view.receivers.iter().map(|it| it.from).sum();
        assert!(began > 0 || kept == 0, "what was right is not sent a second time: {kept}");
        for receiver in &receivers {
            assert!(receiver.received());
            assert!(receiver.read("x") == content(8_000_001));
        }
    }
}
