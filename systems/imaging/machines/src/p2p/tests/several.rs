//! Several switches on a path: a message that one of them has redirected is final for the others.

use rackweave_core::{PayloadStore, Port, Verdict};
use rackweave_switch::system::{SystemProgram as _, Visible as _};
use rackweave_wire::frame::ip_address;
use rackweave_wire::frisbee::{Body, Chunks};

use super::*;
use crate::packet::{Header, packet};

/// In three racks, below one spine: the server, two clients that hold chunks, and one that wants them.
const HOLDERS: [HostId; 2] = [HostId(1), HostId(2)];
const WANTS: HostId = HostId(3);
/// The switches on the paths to the server: a leaf, the spine, and the server's leaf.
const FROM_HOLDER: [usize; 3] = [0, 3, 2];
const FROM_WANTS: [usize; 3] = [1, 3, 2];

/// A message that has left the path to the server, or arrived there: source, destination, and the last switch before that.
type Left = (HostId, HostId, Body, usize);

struct Switches {
    programs: Vec<Program>,
    /// The first byte of reports.
    map: u8,
}

impl Switches {
    fn new() -> Self {
        let program = |_| Program::new(switch::Config::data_plane(SERVER));
        Self { programs: (0..4).map(program).collect(), map: 0 }
    }

    /// A client reports the first chunks to the server, and all switches on the path read it.
    fn report(&mut self, holder: HostId, map: u8) {
        self.map = map;
        let report = Body::Report { image: IMAGE, window: 0 };
        let arrived = self.cross(&FROM_HOLDER, holder, SERVER, report);
        assert_eq!(arrived, [(holder, SERVER, report, 2)]);
    }

    fn cross(&mut self, path: &[usize], src: HostId, dst: HostId, body: Body) -> Vec<Left> {
        let mut left = Vec::new();
        let mut slab = Slab::default();
        let mut packet = packet(src, dst, body);
        if matches!(body, Body::Report { .. }) {
            let header = packet.header;
            packet.header = PayloadStore::<Header>::make(&mut slab, header, 1024).unwrap();
            slab.write(&packet)[0] = self.map;
        }
        for (at, switch) in path.iter().enumerate() {
            let program = &mut self.programs[*switch];
            let view = packet.header.view().unwrap();
            let verdict =
                program.handle_packet(Time::from_ticks(1), Port(0), view, &mut packet, &mut slab);
            let mut made = Vec::new();
            while let Some(packet) = program.poll_transmit(Time::from_ticks(1)) {
                made.push((packet.src, packet.dst, packet.header.body, *switch));
            }
            for made in made {
                match made.1 {
                    SERVER => left.extend(self.cross(&path[at + 1..], made.0, made.1, made.2)),
                    _ => left.push(made),
                }
            }
            if verdict == Verdict::Consume {
                return left;
            }
            assert_eq!(verdict, Verdict::Route);
            if packet.dst != dst {
                left.push((src, packet.dst, body, *switch));
                return left;
            }
        }
        left.push((src, dst, body, path.last().copied().unwrap_or(usize::MAX)));
        left
    }

    fn handled(&self) -> [u64; 4] {
        [0, 1, 2, 3].map(|switch| self.programs[switch].counts().lifted)
    }
}

fn chunks(first: u32, count: u16) -> Chunks {
    Chunks { image: IMAGE, first, count, tries: 0 }
}

#[test]
fn what_one_switch_redirects_the_next_does_not() {
    let mut switches = Switches::new();
    switches.report(HOLDERS[0], 0b110);
    assert_eq!(switches.handled(), [1, 0, 1, 1]);

    // The requester's leaf has no holder below it, and the spine does.
    let request = Body::Batch(chunks(1, 2));
    let redirected = switches.cross(&FROM_WANTS, WANTS, SERVER, request);
    assert_eq!(redirected, [(WANTS, HOLDERS[0], request, 3)]);
    let before = switches.handled();
    let arrived = switches.cross(&[0], WANTS, HOLDERS[0], request);
    assert_eq!(arrived, [(WANTS, HOLDERS[0], request, 0)], "the holder's leaf passes it on");
    assert_eq!(switches.handled(), before);

    // The server's leaf has the holder's report too, but does not redirect to it what the holder has returned.
    let requester = ip_address(WANTS).unwrap();
    let returned = Body::Return { chunks: chunks(1, 2), requester };
    let arrived = switches.cross(&FROM_HOLDER, HOLDERS[0], SERVER, returned);
    assert_eq!(arrived, [(HOLDERS[0], SERVER, returned, 2)]);
    let redirected: Vec<u64> =
        switches.programs.iter().map(|program| program.counts().redirected).collect();
    assert_eq!(redirected, [0, 0, 0, 1]);
    assert_eq!(switches.programs[3].directory().holders(IMAGE, 1), []);
}

#[test]
fn a_return_is_divided_between_another_holder_and_the_server() {
    let mut switches = Switches::new();
    switches.report(HOLDERS[0], 0b110);
    let request = Body::Batch(chunks(1, 2));
    assert_eq!(switches.cross(&FROM_WANTS, WANTS, SERVER, request)[0].1, HOLDERS[0]);
    switches.report(HOLDERS[1], 0b100);
    let requester = ip_address(WANTS).unwrap();
    let returned = |first, count| Body::Return { chunks: chunks(first, count), requester };
    let again = switches.cross(&FROM_HOLDER, HOLDERS[0], SERVER, returned(1, 2));
    let to_server = (HOLDERS[0], SERVER, returned(1, 1), 2);
    assert_eq!(again, [to_server, (WANTS, HOLDERS[1], Body::Batch(chunks(2, 1)), 3)]);
    let second = switches.cross(&FROM_HOLDER, HOLDERS[1], SERVER, returned(2, 1));
    assert_eq!(second, [(HOLDERS[1], SERVER, returned(2, 1), 2)], "nobody else has it");
}
