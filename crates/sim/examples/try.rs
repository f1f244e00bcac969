//! scratch
use rackweave_core::*;
use rackweave_sim::config::*;
use rackweave_sim::result::Outcome;
use rackweave_sim::*;
use rackweave_transport::*;
use rackweave_workload::*;
use std::sync::Arc;
fn main() {
    let a: Vec<String> = std::env::args().collect();
    let w = a[1].clone();
    let n: u64 = a[2].parse().unwrap();
    let load: f64 = a[3].parse().unwrap();
    let rx: u64 = a.get(4).map_or(1000, |x| x.parse().unwrap());
    let fabric = FabricConfig {
        topology: Topology::LeafSpine {
            leaves: 9,
            hosts_per_leaf: 16,
            spines: 4,
            host_link: Rate::from_gbps(10),
            core_link: Rate::from_gbps(40),
        },
        host_link_delay: Span::ZERO,
        core_link_delay: Span::ZERO,
        host_send_delay: Span::from_ns(500),
        host_receive_delay: Span::from_ns(rx),
        switch: SwitchConfig {
            latency: Span::from_ns(250),
            buffer: BufferConfig::PerPort { bytes: u64::MAX },
            ecn_threshold_bytes: None,
            trim: None,
            routing: Routing::Transport,
        },
    };
    let sizes = SizeDist::named(&w).unwrap();
    let homa0 = homa::Config::sigcomm18(Rate::from_gbps(10), 10_000);
    let pts: Vec<(u32, f64)> = sizes.points().map(|(s, p)| (s as u32, p)).collect();
    let lv = match w.as_str() {
        "W1" => 7,
        "W2" => 5,
        "W3" => 4,
        _ => 1,
    };
    let cut = homa::cutoffs::allocate_for(
        &homa0,
        &pts,
        Some(a.get(6).map_or(lv, |x| x.parse().unwrap())),
    );
    eprintln!("{cut:?}");
    let homa = homa0.with_priorities(cut);
    let homa = if let Some(oc) = a.get(5) {
        homa::Config { overcommit: oc.parse().unwrap(), ..homa }
    } else {
        homa
    };
    let config = RunConfig {
        seed: 1,
        run: 0,
        fabric,
        streams: vec![StreamConfig {
            transport: TransportConfig::Homa(Arc::new(homa)),
            workload: WorkloadConfig::new(Pattern::OpenLoop {
                sizes: sizes.clone(),
                load,
                counts: LoadCounts::Wire,
            }),
        }],
        faults: vec![],
        measure: MeasureConfig {
            warmup: Span::from_ms(2),
            messages: n,
            time_limit: Span::from_secs(10),
            sample_every: Span::ZERO,
            verify: false,
            capture: vec![],
            capture_limit: 0,
        },
    };
    let t = std::time::Instant::now();
    let r = run(&config, &Control::default()).unwrap();
    let dt = t.elapsed().as_secs_f64();
    println!(
        "{:?} {} hops {} ev {} -> {:.2} Mhops/s {:.1}s drops {:?} refused {} measured {} meanq {:.0} maxq {}",
        r.end,
        r.ended_at,
        r.counters.packet_hops,
        r.counters.events,
        r.counters.packet_hops as f64 / dt / 1e6,
        dt,
        r.counters.drops.iter().sum::<u64>(),
        r.counters.refused,
        r.measured,
        r.mean_queue_bytes,
        r.max_queue_bytes
    );
    let down: f64 =
        r.links.iter().filter(|l| l.name.contains("->h")).map(|l| l.utilisation).sum::<f64>()
            / 144.0;
    println!(
        "downlink util {down:.3} goodput/host {:.3}",
        r.delivered_bytes[0] as f64 * 8.0 / r.measured.as_secs_f64() / 144e10
    );
    let mut all: Vec<(u64, f64)> = vec![];
    let mut unf = 0;
    for m in &r.messages {
        if let Outcome::Completed(e) = m.outcome {
            all.push((m.bytes, e.since(m.start).0 as f64 / m.ideal.0 as f64));
        } else {
            unf += 1;
        }
    }
    println!(
        "n {} unfinished/failed {unf} mean {:.3} min {:.4}",
        all.len(),
        all.iter().map(|x| x.1).sum::<f64>() / all.len() as f64,
        all.iter().map(|x| x.1).fold(9.0, f64::min)
    );
    all.sort_by_key(|x| x.0);
    let k = all.len() / 20;
    for c in all.chunks(k.max(1)) {
        let mut s: Vec<f64> = c.iter().map(|x| x.1).collect();
        s.sort_by(f64::total_cmp);
        println!(
            "{:>9}..{:>9} p50 {:.2} p99 {:.2} max {:.1}",
            c[0].0,
            c[c.len() - 1].0,
            s[s.len() / 2],
            s[s.len() * 99 / 100],
            s[s.len() - 1]
        );
    }
    let c = &all[all.len() * 985 / 1000..all.len() * 995 / 1000];
    let mut s: Vec<f64> = c.iter().map(|x| x.1).collect();
    s.sort_by(f64::total_cmp);
    println!(
        "99%: {}..{} p50 {:.2} p99 {:.2}",
        c[0].0,
        c[c.len() - 1].0,
        s[s.len() / 2],
        s[s.len() * 99 / 100]
    );
    let c = &all[all.len() * 999 / 1000..];
    let mut s: Vec<f64> = c.iter().map(|x| x.1).collect();
    s.sort_by(f64::total_cmp);
    println!(
        "max: {}..{} p50 {:.2} p99 {:.2}",
        c[0].0,
        c[c.len() - 1].0,
        s[s.len() / 2],
        s[s.len() * 99 / 100]
    );
}
