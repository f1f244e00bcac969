//! Runs Orca's ToR in the kernel, between interfaces of this namespace, until standard input ends: `tor p0,p1,p2
//! "02:77:00:00:00:00,10.77.0.254,0;02:77:00:00:00:01,10.77.0.1,1" [agent's port]`.

use std::io::Read;

use rackweave_orca_bpf::{Tor, TorConfig, TorHost};

fn host(words: &str) -> Option<TorHost> {
    let mut words = words.split(',');
    let mut mac = [0; 6];
    let mut bytes = words.next()?.split(':');
    for byte in &mut mac {
        *byte = u8::from_str_radix(bytes.next()?, 16).ok()?;
    }
    let (ip, port) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    Some(TorHost { mac, ip: Some(ip), port })
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(ports), Some(hosts)) = (arguments.next(), arguments.next()) else {
        return Err("which interfaces, and which hosts (MAC,IP,PORT;...)?".into());
    };
    let hosts: Option<Vec<TorHost>> = hosts.split(';').map(host).collect();
    let config = TorConfig {
        ports: ports.split(',').map(str::to_owned).collect(),
        hosts: hosts.ok_or("a host is MAC,IP,PORT")?,
        agent: arguments.next().map(|port| port.parse()).transpose()?,
        ..TorConfig::default()
    };
    let tor = Tor::attach(&config)?;
    println!("ready");
    std::io::stdin().read_to_end(&mut Vec::new())?;
    println!("{:?}", tor.counters()?);
    Ok(())
}
