//! An attacker between sender and receiver who truncates, duplicates, delays, replays and forges packets.

use rackweave_wire::orca::{Body, Control, Data, Decoded, Header, Labelled, Parity};

use super::*;

/// Much longer than a transfer takes.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(60);

struct Forger {
    random: u64,
    /// Packets that have passed, to be replayed.
    past: Vec<Vec<u8>>,
    /// The percentage of packets that the attacker changes.
    percent: u64,
}

impl Forger {
    const fn next(&mut self) -> usize {
        self.random = self
            .random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 33) as usize
    }

    /// Returns a packet with other content, and with the check that a sender without the key would compute.
    fn forge(&mut self, bytes: &[u8]) -> Option<Vec<u8>> {
        let Decoded { mut header, payload, .. } = orca_of(bytes)?;
        let mut payload = bytes[payload].to_vec();
        let number = self.next();
        match &mut header {
            Header::Data(data) => match number % 6 {
                0 => data.offset = (data.offset ^ 1 << (number >> 8 & 31)) & ((1 << 48) - 1),
                1 => data.end = true,
                2 => data.repair = !data.repair,
                3 => data.labelled = Labelled::Rack,
                4 => {
                    let block = Parity { index: 0, data: number as u8, parity: 1, last: 9 };
                    data.parity = Some(block);
                }
                _ => {
                    let at = number % payload.len().max(1);
                    payload.get_mut(at).map(|byte| *byte ^= 0x55)?;
                }
            },
            Header::Control(Control { session, .. }) => session.0 ^= 1 << (number & 31),
        }
        let mut forged = Vec::new();
        rackweave_wire::orca::encode_header(&header, 1, None, &[&payload], &mut forged);
        forged.extend_from_slice(&payload);
        Some(forged)
    }

    /// Returns the packets that are forwarded in place of a packet.
    fn pass(&mut self, bytes: &[u8]) -> Vec<Vec<u8>> {
        self.past.push(bytes.to_vec());
        let chance = self.next() as u64 % 100;
        let whole = bytes.to_vec();
        if chance >= self.percent {
            return vec![whole];
        }
        let number = self.next();
        let mut changed = whole.clone();
        match number % 8 {
            0 => vec![bytes[..(number >> 8) % bytes.len()].to_vec()],
            1 => vec![whole.clone(), whole.clone(), whole],
            2 => {
                let old = self.past[(number >> 8) % self.past.len()].clone();
                vec![old.clone(), whole, old]
            }
            3 => {
                changed.extend_from_slice(&[0xab; 7]);
                vec![changed, whole]
            }
            // Kind and label are not covered by the check of data.
            4 => {
                changed[0] = changed[0] & 0xf0 | (number >> 8) as u8 & 0xf;
                vec![changed, whole]
            }
            5 => {
                let at = (number >> 8) % changed.len();
                changed[at] ^= 1 << (number >> 24 & 7);
                vec![changed]
            }
            6 => {
                let noise = |at: usize| (number >> (at & 15)) as u8 ^ at as u8;
                vec![(0..number % 300).map(noise).collect(), whole]
            }
            _ => self.forge(bytes).into_iter().chain([whole]).collect(),
        }
    }
}

fn orca_of(bytes: &[u8]) -> Option<Decoded> {
    rackweave_wire::orca::decode(bytes, None).ok()
}

/// Returns the packets that are forwarded in place of a packet.
pub(super) type Pass = Box<dyn FnMut(&[u8]) -> Vec<Vec<u8>> + Send>;

/// A relay between sender and receiver, in both directions.
pub(super) struct Between {
    pub(super) address: SocketAddr,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Between {
    /// Starts the relay. `pass` creates the function for packets of the sender (true) and for those of the receiver.
    pub(super) fn start(to: SocketAddr, pass: impl Fn(bool) -> Pass) -> Self {
        let bind = || Arc::new(std::net::UdpSocket::bind("127.0.0.1:0").unwrap());
        let (front, back) = (bind(), bind());
        let address = front.local_addr().unwrap();
        let (stop, sender) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(None)));
        let ways = [(&front, &back, true), (&back, &front, false)];
        let threads = ways.map(|(from, by, there)| {
            let (from, by) = (Arc::clone(from), Arc::clone(by));
            let (stop, sender) = (Arc::clone(&stop), Arc::clone(&sender));
            let mut pass = pass(there);
            std::thread::spawn(move || {
                from.set_read_timeout(Some(std::time::Duration::from_millis(20))).unwrap();
                let mut buffer = vec![0; 1 << 16];
                while !stop.load(Ordering::Relaxed) {
                    let Ok((len, whose)) = from.recv_from(&mut buffer) else { continue };
                    let mut known = sender.lock().unwrap();
                    if there {
                        *known = Some(whose);
                    }
                    let Some(other) = (if there { Some(to) } else { *known }) else { continue };
                    drop(known);
                    for bytes in pass(&buffer[..len]) {
                        let _ = by.send_to(&bytes, other);
                    }
                }
            })
        });
        Self { address, stop, threads: threads.into() }
    }

    /// Starts a relay that forges packets; `past` holds packets that were recorded earlier.
    fn forges(to: SocketAddr, seed: u64, percent: u64, past: &[Vec<u8>], record: &Record) -> Self {
        Self::start(to, |there| {
            let (past, record) = (past.to_vec(), Arc::clone(record));
            let mut forger = Forger { random: seed ^ u64::from(there), past, percent };
            Box::new(move |bytes| {
                record.lock().unwrap().push(bytes.to_vec());
                forger.pass(bytes)
            })
        })
    }

    pub(super) fn end(self) {
        self.stop.store(true, Ordering::Relaxed);
        self.threads.into_iter().for_each(|thread| thread.join().unwrap());
    }
}

/// The packets that were recorded, shared with the test.
pub(super) type Record = Arc<Mutex<Vec<Vec<u8>>>>;

#[test]
fn with_a_key_a_forger_only_costs_time() {
    let secret = Some(&b"a secret of both"[..]);
    let receiver = Receiving::start(secret, None);
    let from = tempfile::tempdir().unwrap();
    let mut past = Vec::new();
    for (round, len) in [1_200_000, 900_000].into_iter().enumerate() {
        let name = format!("x{round}");
        let path = file(from.path(), &name, len);
        // Packets recorded in the first session are replayed in the second.
        let record = Record::default();
        let between = Between::forges(receiver.address, round as u64, 12, &past, &record);
        let mut engine = sender(secret);
        let view = send(&mut engine, Box::new(Files::new(&[path]).unwrap()), &[between.address]);
        assert_eq!(completed(&view), 1, "{round}: {view:?}");
        assert!(receiver.read(&name) == content(len));
        between.end();
        past = std::mem::take(&mut *record.lock().unwrap());
        assert!(past.len() > 100);
    }
}

#[test]
fn without_a_key_a_forger_gets_nothing_wrong_delivered() {
    let from = tempfile::tempdir().unwrap();
    let path = file(from.path(), "x", 1_500_000);
    for seed in 2..6 {
        // A receiver that is led to expect bytes beyond the end waits for them as long as for a silent sender.
        let config = EngineConfig::new("127.0.0.1:0".parse().unwrap());
        let receiver = Receiving::start_with(tempfile::tempdir().unwrap(), None, config).unwrap();
        let between = Between::forges(receiver.address, seed, 4, &[], &Record::default());
        let mut engine = sender(None);
        let source = Box::new(Files::new(std::slice::from_ref(&path)).unwrap());
        let view = send(&mut engine, source, &[between.address]);
        between.end();
        let place = receiver.folder.path().join("x");
        // The attacker may make the transfer fail, but nothing more.
        assert!(place.exists() || completed(&view) == 0);
        if !place.exists() {
            assert_eq!(completed(&send_one(path.clone(), receiver.address)), 1);
        }
        assert!(receiver.read("x") == content(1_500_000));
    }
}

#[test]
fn with_a_key_forged_byes_and_completions_are_ignored() {
    let secret = Some(&b"a secret of both"[..]);
    let receiver = Receiving::start(secret, None);
    let from = tempfile::tempdir().unwrap();
    let path = file(from.path(), "x", 600_000);
    let (send_address, address) = channel();
    let (to, stop) = (receiver.address, Arc::new(AtomicBool::new(false)));
    let stopped = Arc::clone(&stop);
    // An attacker on the path from the sender injects packets that a forger without the key would send in the sender's
    // name.
    let thread = std::thread::spawn(move || {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        send_address.send(socket.local_addr().unwrap()).unwrap();
        socket.set_read_timeout(Some(PATIENCE / 1000)).unwrap();
        let (mut buffer, mut sender, mut lies) = (vec![0; 1 << 16], None, 0);
        while !stopped.load(Ordering::Relaxed) {
            let Ok((len, whose)) = socket.recv_from(&mut buffer) else { continue };
            if whose == to {
                let Some(sender) = sender else { continue };
                let _ = socket.send_to(&buffer[..len], sender);
                continue;
            }
            sender = Some(whose);
            let session = Session(u32::from_be_bytes(buffer[8..12].try_into().unwrap()));
            let control = |body| Control { from: HostId(0), to: HostId(0), session, body };
            let end = Data {
                labelled: Labelled::Host,
                label: rackweave_wire::orca::Label(0),
                session,
                offset: 0,
                len: 0,
                repair: false,
                end: true,
                parity: None,
            };
            let said = [
                Header::Control(control(Body::Bye { reason: rackweave_wire::orca::Reason::Left })),
                Header::Data(end),
            ];
            for header in &said {
                let mut bytes = Vec::new();
                rackweave_wire::orca::encode_header(header, 1, None, &[], &mut bytes);
                let _ = socket.send_to(&bytes, to);
                lies += 1;
            }
            let _ = socket.send_to(&buffer[..len], to);
        }
        lies
    });
    let address = address.recv().unwrap();
    let mut engine = sender(secret);
    let view = send(&mut engine, Box::new(Files::new(&[path]).unwrap()), &[address]);
    assert_eq!(completed(&view), 1, "{view:?}");
    assert!(receiver.read("x") == content(600_000));
    stop.store(true, Ordering::Relaxed);
    assert!(thread.join().unwrap() > 0);
    let (_, stats) = receiver.crash();
    assert!(stats.key_mismatch > 0);
}
