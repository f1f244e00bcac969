//! The scenario of a seed.

use std::fmt::Write as _;

use rackweave_core::{Rate, Rng, Span, Time};
use rackweave_orca::host::Spread;

use super::source::Reads;

/// All failures begin before this, and the last process is up again soon after it.
pub(super) const FAILURES_UNTIL: Span = Span::from_secs(4);

/// A file of the stream.
#[derive(Clone, Debug)]
pub(super) struct File {
    pub(super) path: String,
    pub(super) length: usize,
    pub(super) mode: u16,
    /// Which of its chunks are holes, as bits.
    pub(super) holes: u8,
}

/// A hard link.
#[derive(Clone, Debug)]
pub(super) struct Link {
    pub(super) path: String,
    /// The place of its file among the files.
    pub(super) file: usize,
    /// Whether receivers have a copy of the file there before.
    pub(super) before: bool,
}

/// A symbolic link.
#[derive(Clone, Debug)]
pub(super) struct Symlink {
    pub(super) path: String,
    pub(super) target: String,
    /// The text of the one that receivers have there before.
    pub(super) before: Option<String>,
}

/// What happens to a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// It is killed, in the middle of an operation on its disk if it has one in the next moment.
    Kill {
        /// After how many operations of its disk; `None`: at once.
        operations: Option<u64>,
    },
    /// The machine loses power.
    PowerFailure,
    /// It handles nothing for a time.
    Pause,
    /// Its disk is full.
    DiskFull,
    /// Operations of its disk fail.
    DiskErrors,
    /// Its writes are short.
    ShortWrites,
    /// Its disk answers no operation for a time.
    DiskStalls,
}

/// A fault of one host.
#[derive(Clone, Copy, Debug)]
pub(super) struct Failure {
    pub(super) host: u32,
    pub(super) at: Span,
    /// How long it takes, or until the process is started again.
    pub(super) lasts: Span,
    pub(super) fault: Fault,
}

/// What a receiver has at the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Before {
    Nothing,
    /// The first file, as it is sent.
    Same,
    /// The first file with another content and time.
    Older,
    /// The first file with another content, and the same length and time.
    Alike,
}

#[derive(Clone, Debug)]
pub(super) struct Host {
    /// The largest IP packet on its link, in bytes.
    pub(super) mtu: u32,
    pub(super) rate: Rate,
    pub(super) delay: Span,
    /// What its clock reads when the run starts.
    pub(super) clock: Time,
    pub(super) before: Before,
    /// Whether pages of the file that it has before are not on its disk: the sync of whoever wrote it has failed.
    pub(super) unsynced: bool,
    /// Whether its processor has instructions for AES, which decides the cipher.
    pub(super) has_aes: bool,
    /// How long it reads what it has, before it joins a session.
    pub(super) preparing: Span,
    /// What a step of a sink takes: this long, and as long as its bytes take at this rate.
    pub(super) disk_latency: Span,
    pub(super) disk_rate: Rate,
    /// The bytes that fit into its socket's send buffer.
    pub(super) send_buffer: usize,
    /// The least time between two turns of its engine.
    pub(super) turn: Span,
}

/// A scenario. The first host is the sender.
#[derive(Clone, Debug)]
pub(super) struct Scenario {
    pub(super) seed: u64,
    pub(super) files: Vec<File>,
    /// Further names of files.
    pub(super) links: Vec<Link>,
    pub(super) symlinks: Vec<Symlink>,
    /// With `--delete`, the files of receivers that the sender has not, in its folder.
    pub(super) deletes: Vec<String>,
    pub(super) hosts: Vec<Host>,
    pub(super) spread: Spread,
    pub(super) fec_block: u8,
    pub(super) window: u64,
    /// Whether receivers sync files.
    pub(super) sync: bool,
    pub(super) overwrite: bool,
    pub(super) loss: f64,
    pub(super) duplication: f64,
    pub(super) reordering: f64,
    pub(super) failures: Vec<Failure>,
    pub(super) key: bool,
    /// With a key, the mean time between datagrams of somebody who records them; [`Span::ZERO`] for nobody.
    pub(super) attack: Span,
    /// With a key, the mean time between forged data of a receiver, which has the key of the data; [`Span::ZERO`] for none.
    pub(super) insider: Span,
    /// Whether one process of the sender makes all casts, as an agent does; otherwise each has a process and a port of its own.
    pub(super) agent: bool,
    /// Whether hosts know each other from the start, by the numbers of a fabric.
    pub(super) fabric: bool,
    pub(super) reads: Reads,
    /// For how long a receiver that fell silent is invited again.
    pub(super) retry: Span,
    /// The bytes of a receive window.
    pub(super) room: u64,
    /// How many sessions a receiver takes at a time.
    pub(super) max_sessions: u32,
}

/// What clocks read at the end of their range, less an hour.
const LATE: Time = Time::from_ticks(u64::MAX - Span::from_secs(3600).ticks());

fn pick<T: Copy>(rng: &mut Rng, of: &[T]) -> T {
    of[rng.below(of.len() as u64) as usize]
}

/// Draws the scenario of a seed.
pub(super) fn scenario(seed: u64) -> Scenario {
    let rng = &mut Rng::stream(seed, 0, 0, "store");
    let count = 1 + rng.below(4);
    let nested = rng.chance(0.5);
    let mut files: Vec<File> = (0..count)
        .map(|n| {
            let length = match rng.below(4) {
                0 => rng.below(2000),
                1 => rng.below(300_000),
                2 => (1 + rng.below(2)) << 20,
                _ => (1 << 20) + rng.below(1_500_000),
            };
            let path = if nested { format!("d/f{n}") } else { format!("f{n}") };
            File { path, length: length as usize, mode: 0o640, holes: 0 }
        })
        .collect();
    let receivers = 1 + rng.below(3) as u32;
    let sync = rng.chance(0.6);
    // Without `--sync`, only `--overwrite` replaces what a power failure has made of a complete file.
    let power = sync || rng.chance(0.3);
    let overwrite = power || rng.chance(0.5);
    let (links, symlinks) = more(seed, &mut files, overwrite);
    let mut hosts = hosts(rng, receivers, overwrite);
    let mut failures: Vec<Failure> =
        (0..rng.below(7)).map(|_| failure(rng, receivers, power)).collect();
    let chance = |rng: &mut Rng| pick(rng, &[0.0, 0.0, 0.001, 0.02]);
    // A stream of its own, so that the rest of a seed is what it was before there were keys.
    let keys = &mut Rng::stream(seed, 0, 0, "keys");
    let key = keys.chance(0.5);
    let attack = Span::from_us(pick(keys, &[0, 200, 2000, 20_000]));
    for host in &mut hosts {
        host.has_aes = keys.chance(0.7);
    }
    // As well: less and more than a sender's patience, and more than the time for which it waits for a receiver to return.
    let times = &mut Rng::stream(seed, 0, 0, "preparing");
    for host in hosts.iter_mut().skip(1) {
        host.preparing = Span::from_ms(pick(times, &[0, 0, 20, 600, 5000, 12_000]));
    }
    // Such a file is replaced if `--sync` finds it.
    let unsynced = &mut Rng::stream(seed, 0, 0, "unsynced");
    for host in &mut hosts {
        let is_found = sync && overwrite && host.before == Before::Same;
        host.unsynced = unsynced.chance(0.5) && is_found;
    }
    let insider = Span::from_us(pick(keys, &[0, 300, 3000, 30_000]));
    let spread = pick(rng, &[Spread::Unicast, Spread::Multicast, Spread::Multicast, Spread::Relay]);
    let engine = &mut Rng::stream(seed, 0, 0, "engine");
    for host in &mut hosts {
        let ms = pick(engine, &[0, 0, 1, 20, 100]);
        let mbps = pick(engine, &[100_000, 100_000, 500, 50]);
        (host.disk_latency, host.disk_rate) = (Span::from_ms(ms), Rate(mbps * 1_000_000));
        host.send_buffer = pick(engine, &[64 << 10, 256 << 10, 1 << 20]);
        host.turn = Span::from_us(pick(engine, &[1, 1, 30, 300]));
    }
    // What goes wrong without any fault is seen only without faults.
    if engine.chance(0.2) {
        failures.clear();
    } else {
        failures.extend((0..engine.below(3)).map(|_| stall(engine, receivers)));
    }
    failures.sort_by_key(|failure| (failure.at, failure.host));
    let reads = reads(engine);
    if let Reads::Pipe { limit: Some(_), .. } = reads {
        // Whoever joins late does not get the beginning.
        hosts.iter_mut().for_each(|host| host.preparing = Span::ZERO);
    }
    let deletes = deletes(seed, &files, reads);
    Scenario {
        seed,
        files,
        links,
        symlinks,
        deletes,
        hosts,
        spread,
        fec_block: pick(rng, &[0, 8, 64]),
        window: pick(rng, &[256 << 10, 8 << 20]),
        sync,
        overwrite,
        loss: chance(rng),
        duplication: chance(rng),
        reordering: chance(rng),
        failures,
        key,
        attack,
        insider,
        agent: engine.chance(0.3),
        // The lists of hosts by which receivers relay need numbers that all know.
        fabric: spread == Spread::Relay || engine.chance(0.25),
        reads,
        retry: Span::from_secs(pick(engine, &[0, 10, 10])),
        room: pick(engine, &[1 << 20, 16 << 20]),
        max_sessions: pick(engine, &[1, 16]),
    }
}

/// Draws modes and holes of files, and links, from streams of their own: the rest of a seed is what it was without them.
fn more(seed: u64, files: &mut [File], overwrite: bool) -> (Vec<Link>, Vec<Symlink>) {
    let kinds = &mut Rng::stream(seed, 0, 0, "modes and holes");
    for file in files.iter_mut() {
        file.mode = pick(kinds, &[0o640, 0o640, 0o444, 0o755, 0o600]);
        file.holes = if kinds.chance(0.4) { kinds.below(8) as u8 } else { 0 };
    }
    let names = &mut Rng::stream(seed, 0, 0, "links");
    let links = (0..names.below(4)).map(|n| {
        let path = if names.chance(0.5) { format!("d/l{n}") } else { format!("l{n}") };
        Link { path, file: names.below(files.len() as u64) as usize, before: false }
    });
    let mut links: Vec<Link> = links.collect();
    let texts = &mut Rng::stream(seed, 0, 0, "symlinks");
    // Copies become links only where files are replaced.
    links.iter_mut().for_each(|link| link.before = texts.chance(0.4) && overwrite);
    let text = |texts: &mut Rng| pick(texts, &["f0", "../f0", "/etc/passwd", "d", ".", "nothing"]);
    let symlinks = (0..texts.below(4)).map(|n| {
        let path = if texts.chance(0.5) { format!("d/s{n}") } else { format!("s{n}") };
        let target = text(texts).to_owned();
        let before = if overwrite { text(texts).to_owned() } else { target.clone() };
        Symlink { path, target, before: texts.chance(0.3).then_some(before) }
    });
    (links, symlinks.collect())
}

/// Draws what receivers are to delete. A pipe has no manifest.
fn deletes(seed: u64, files: &[File], reads: Reads) -> Vec<String> {
    let rng = &mut Rng::stream(seed, 0, 0, "deletes");
    let has_folder = files.iter().any(|file| file.path.contains('/'));
    if matches!(reads, Reads::Pipe { .. }) || !has_folder || rng.chance(0.6) {
        return Vec::new();
    }
    let names = ["d/old", "d/f0.old", "d/e/f/old", "d/e/g"].map(str::to_owned);
    names.into_iter().take(1 + rng.below(4) as usize).collect()
}

fn hosts(rng: &mut Rng, receivers: u32, overwrite: bool) -> Vec<Host> {
    (0..=receivers)
        .map(|host| {
            let older = if overwrite { [Before::Older, Before::Alike] } else { [Before::Same; 2] };
            let before = match rng.below(6) {
                0 if host > 0 => Before::Same,
                1 if host > 0 => pick(rng, &older),
                _ => Before::Nothing,
            };
            Host {
                mtu: if host > 0 && rng.chance(0.2) { pick(rng, &[1400, 1300, 600]) } else { 1500 },
                rate: Rate(pick(rng, &[20, 100, 1000, 1000]) * 1_000_000),
                delay: Span::from_us(pick(rng, &[5, 20, 200])),
                clock: pick(rng, &[Time::ZERO, Time::ZERO + Span::from_secs(1_000_000), LATE]),
                before,
                unsynced: false,
                has_aes: true,
                preparing: Span::ZERO,
                disk_latency: Span::ZERO,
                disk_rate: Rate(u64::MAX),
                send_buffer: 0,
                turn: Span::ZERO,
            }
        })
        .collect()
}

/// A failure. With `power`, also of the power.
fn failure(rng: &mut Rng, receivers: u32, power: bool) -> Failure {
    let host = rng.below(u64::from(receivers) + 1) as u32;
    let fault = match rng.below(10) {
        0..=3 if host > 0 => {
            let operations = rng.chance(0.7).then(|| rng.below(200));
            Fault::Kill { operations }
        }
        0..=3 => Fault::Kill { operations: None },
        4 | 5 if power && host > 0 => Fault::PowerFailure,
        6 if host > 0 => Fault::DiskFull,
        7 if host > 0 => Fault::DiskErrors,
        8 if host > 0 => Fault::ShortWrites,
        _ => Fault::Pause,
    };
    // Most of what happens, happens early.
    let most = if rng.chance(0.7) { FAILURES_UNTIL.as_ps() / 20 } else { FAILURES_UNTIL.as_ps() };
    let (at, lasts) = (Span::from_ps(rng.below(most)), Span::from_ps(rng.below(most) + 1_000_000));
    Failure { host, at, lasts, fault }
}

/// A time in which a receiver's disk stands still.
fn stall(rng: &mut Rng, receivers: u32) -> Failure {
    let host = 1 + rng.below(u64::from(receivers)) as u32;
    let (at, lasts) = (rng.below(1000), pick(rng, &[10, 300, 2000, 5000]));
    Failure { host, at: Span::from_ms(at), lasts: Span::from_ms(lasts), fault: Fault::DiskStalls }
}

fn reads(rng: &mut Rng) -> Reads {
    let rate = Rate(pick(rng, &[20, 200, 2000]) * 1_000_000);
    let limit = rng.chance(0.5).then_some(2 << 20);
    pick(rng, &[Reads::Memory, Reads::Memory, Reads::Files, Reads::Pipe { rate, limit }])
}

impl Scenario {
    /// Whether files are compared by their hashes: some are not what their lengths and times say, from the start or after a
    /// power failure.
    pub(super) fn checksum(&self) -> bool {
        let power = |failure: &Failure| failure.fault == Fault::PowerFailure;
        let loses_power = self.failures.iter().any(power);
        self.hosts.iter().any(|host| host.before == Before::Alike || host.unsynced && loses_power)
            || !self.sync && loses_power
    }

    /// Returns it as text, for people; the seed alone gives the same run.
    pub(super) fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a string does not fail.
        let Self { seed, spread, fec_block, window, sync, overwrite, .. } = self;
        let _ = writeln!(
            text,
            "# Drawn by `rackweave chaos store --seed {seed}`, which repeats the run."
        );
        let _ = writeln!(
            text,
            "spread = \"{}\"\nfec_block = {fec_block}\nwindow = {window}",
            spread.name()
        );
        let Self { key, attack, insider, .. } = self;
        let _ = writeln!(
            text,
            "sync = {sync}\noverwrite = {overwrite}\nkey = {key}\nattack = \"{attack}\"\ninsider = \"{insider}\""
        );
        let Self { agent, fabric, reads, retry, room, max_sessions, .. } = self;
        let _ = writeln!(
            text,
            "agent = {agent}\nfabric = {fabric}\nreads = \"{reads:?}\"\nretry = \"{retry}\"\nroom = {room}\nmax_sessions = {max_sessions}"
        );
        let Self { loss, duplication, reordering, .. } = self;
        let _ =
            writeln!(text, "loss = {loss}\nduplication = {duplication}\nreordering = {reordering}");
        let _ = writeln!(text, "deletes = {:?}", self.deletes);
        for File { path, length, mode, holes } in &self.files {
            let _ = writeln!(
                text,
                "\n[[file]]\npath = \"{path}\"\nlength = {length}\nmode = 0o{mode:o}\nholes = 0b{holes:b}"
            );
        }
        for Link { path, file, before } in &self.links {
            let _ = writeln!(text, "\n[[link]]\npath = \"{path}\"\nfile = {file}\ncopy = {before}");
        }
        for Symlink { path, target, before } in &self.symlinks {
            let before = before.as_ref().map_or(String::new(), |it| format!("\nbefore = \"{it}\""));
            let _ =
                writeln!(text, "\n[[symlink]]\npath = \"{path}\"\ntarget = \"{target}\"{before}");
        }
        for (number, host) in self.hosts.iter().enumerate() {
            let Host { mtu, rate, delay, clock, before, unsynced, has_aes, preparing, .. } = host;
            let Host { disk_latency, disk_rate, send_buffer, turn, .. } = host;
            let _ = writeln!(text, "\n[[host]]\nnumber = {number}\nmtu = {mtu}\nlink = \"{rate}\"");
            let _ = writeln!(
                text,
                "delay = \"{delay}\"\nclock_ticks = {}\nhas = \"{before:?}\"\nunsynced = {unsynced}\nhas_aes = {has_aes}\npreparing = \"{preparing}\"",
                clock.ticks()
            );
            let _ = writeln!(
                text,
                "disk_latency = \"{disk_latency}\"\ndisk_rate = \"{disk_rate}\"\nsend_buffer = {send_buffer}\nturn = \"{turn}\""
            );
        }
        for Failure { host, at, lasts, fault } in &self.failures {
            let _ = writeln!(text, "\n[[failure]]\nhost = {host}\nkind = \"{fault:?}\"");
            let _ = writeln!(text, "at = \"{at}\"\nlasts = \"{lasts}\"");
        }
        text
    }
}
