use rackweave_core::*;
use rackweave_transport::tcp::{Config, Host};
use rackweave_wire::tcp::Body;
use std::time::Instant;
fn main() {
    println!("packet {}", size_of::<Packet<rackweave_wire::tcp::Header>>());
    for (n, name) in [(1u32, "1"), (100, "100"), (1000, "1000")] {
        for cfg in [Config::dctcp(), Config::tcp(), Config::new_reno()] {
            let mut senders: Vec<Host> =
                (0..n).map(|i| Host::new(HostId(i), cfg.clone())).collect();
            let mut sink = Host::new(HostId(n), cfg.clone());
            let mut now = Time(0);
            for s in &mut senders {
                s.submit(
                    now,
                    Submit {
                        id: MessageId(2),
                        peer: HostId(n),
                        bytes: 4_000_000_000,
                        kind: Kind::OneWay,
                    },
                )
                .unwrap();
            }
            let mut batch = Vec::new();
            let mut acks = Vec::new();
            let (mut t_tx, mut t_rx, mut t_ack) = (0u128, 0u128, 0u128);
            let (mut n_tx, mut n_rx, mut n_ack) = (0u64, 0u64, 0u64);
            let rounds = 3_000_000 / n / 16;
            for _ in 0..rounds {
                let t = Instant::now();
                for s in &mut senders {
                    for _ in 0..16 {
                        let Some(p) = s.poll_transmit(now) else { break };
                        std::hint::black_box(s.poll_timeout());
                        batch.push(p);
                    }
                }
                t_tx += t.elapsed().as_nanos();
                n_tx += batch.len() as u64;
                now += Span::from_us(13);
                let t = Instant::now();
                // interleave as in incast
                let m = batch.len();
                let stride = 16.min(m);
                for k in 0..stride {
                    let mut i = k;
                    while i < m {
                        let _ = sink.handle_packet(now, &batch[i]);
                        std::hint::black_box(sink.poll_timeout());
                        if let Some(a) = sink.poll_transmit(now) {
                            acks.push(a);
                        }
                        i += stride;
                    }
                }
                t_rx += t.elapsed().as_nanos();
                n_rx += m as u64;
                batch.clear();
                if sink.poll_timeout().is_some_and(|t| t <= now) {
                    sink.handle_timeout(now);
                    while let Some(a) = sink.poll_transmit(now) {
                        acks.push(a);
                    }
                }
                now += Span::from_us(13);
                let t = Instant::now();
                for a in &acks {
                    let s = &mut senders[a.dst.0 as usize];
                    let _ = s.handle_packet(now, a);
                    std::hint::black_box(s.poll_timeout());
                    while s.poll_event().is_some() {}
                }
                t_ack += t.elapsed().as_nanos();
                n_ack += acks.len() as u64;
                acks.clear();
                for s in &mut senders {
                    if s.poll_timeout().is_some_and(|t| t <= now) {
                        s.handle_timeout(now);
                    }
                }
            }
            println!(
                "{name:5} {:?}: tx {} ns  rx+ack {} ns  handle ack {} ns  ({n_tx} segs {n_ack} acks)",
                cfg.congestion_control,
                t_tx as u64 / n_tx.max(1),
                t_rx as u64 / n_rx.max(1),
                t_ack as u64 / n_ack.max(1)
            );
            let _ = Body::Ack { count: 0, sack: [(0, 0); 3] };
        }
    }
    // one host sending to many
    let cfg = Config::dctcp();
    let mut src = Host::new(HostId(0), cfg.clone());
    let n = 1000u32;
    let mut sinks: Vec<Host> = (0..=n).map(|i| Host::new(HostId(i), cfg.clone())).collect();
    let mut now = Time(0);
    for i in 1..=n {
        src.submit(
            now,
            Submit {
                id: MessageId(2 * u64::from(i)),
                peer: HostId(i),
                bytes: 4_000_000_000,
                kind: Kind::OneWay,
            },
        )
        .unwrap();
    }
    let (mut t_tx, mut t_ack, mut n_tx, mut n_ack) = (0u128, 0u128, 0u64, 0u64);
    let mut batch = Vec::new();
    let mut acks = Vec::new();
    for _ in 0..3000 {
        let t = Instant::now();
        for _ in 0..1000 {
            let Some(p) = src.poll_transmit(now) else { break };
            std::hint::black_box(src.poll_timeout());
            batch.push(p);
        }
        t_tx += t.elapsed().as_nanos();
        n_tx += batch.len() as u64;
        now += Span::from_us(1200);
        for p in batch.drain(..) {
            let s = &mut sinks[p.dst.0 as usize];
            let _ = s.handle_packet(now, &p);
            while let Some(a) = s.poll_transmit(now) {
                acks.push(a);
            }
        }
        for s in &mut sinks {
            if s.poll_timeout().is_some_and(|t| t <= now) {
                s.handle_timeout(now);
                while let Some(a) = s.poll_transmit(now) {
                    acks.push(a);
                }
            }
        }
        let t = Instant::now();
        for a in &acks {
            let _ = src.handle_packet(now, a);
            std::hint::black_box(src.poll_timeout());
        }
        t_ack += t.elapsed().as_nanos();
        n_ack += acks.len() as u64;
        acks.clear();
        if src.poll_timeout().is_some_and(|t| t <= now) {
            src.handle_timeout(now);
        }
    }
    println!("1->1000: tx {} ns, handle ack {} ns", t_tx as u64 / n_tx, t_ack as u64 / n_ack);
}
