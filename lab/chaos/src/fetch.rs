//! Images that are written to a simulated disk: what `image fetch` and `image unpack` do with chunks, whoever sends them
//! ([`rackweave_image::Target`]).
//!
//! Chunks arrive in any order, some of them damaged, some twice. An attempt is killed in the middle of an operation of its disk, or its
//! machine loses power, or its disk is full, fails or writes less than it was given; and then another attempt is made. There is no
//! network here: the protocols run in [`Product::Image`](super::Product::Image), without a disk.
//!
//! In some runs the target is a device, which is written in place; and in some, what it holds at the start was written by a program
//! whose sync has failed, so that processes see bytes that are not on the disk.
//!
//! What must hold: a file that has its name has the bytes of the image, or its earlier bytes. What
//! [`Target::finish`](rackweave_image::Target::finish) has reported as complete is complete, also after a power failure
//! at that moment. A damaged chunk is refused. An attempt after one that was killed has every chunk that was written
//! before. An attempt without faults ends.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock};

use rackweave_core::Rng;
use rackweave_disk::Open;
use rackweave_image::{Image, Manifest, Packing, Progress, SkipFree, Target, TargetConfig, pack};

use super::Ran;
use super::disk::{Disk, Failing};

/// The number of different images.
const IMAGES: usize = 12;

/// The name of the target.
const NAME: &str = "disk.img";

/// Attempts with faults at most.
const MOST_FAULTY: u64 = 7;

/// Attempts without faults; one of them must end.
const CALM: u64 = 2;

/// An image in memory.
struct Packed {
    manifest: Arc<Manifest>,
    content: Vec<u8>,
    chunks: Vec<Vec<u8>>,
}

/// Returns the images, which are packed once: `pack` reads and writes files of the operating system.
fn images() -> Result<&'static [Packed], String> {
    static PACKED: OnceLock<Result<Vec<Packed>, String>> = OnceLock::new();
    let make =
        || (0..IMAGES).map(|number| packed(number).map_err(|error| error.to_string())).collect();
    PACKED.get_or_init(make).as_deref().map_err(Clone::clone)
}

fn packed(number: usize) -> Result<Packed, Box<dyn std::error::Error>> {
    let mut rng = Rng::stream(number as u64, 0, 0, "image");
    let length = match number {
        0 => 0,
        1 => 4096,
        2 => 64 << 10,
        _ => (1 + rng.below(3000)) * 512,
    };
    let mut content = vec![0; length as usize];
    // Runs of data, of zeros, and of what compresses well.
    let mut at = 0;
    while at < content.len() {
        let end = (at + 512 * (1 + rng.below(300)) as usize).min(content.len());
        match rng.below(3) {
            0 => {}
            1 => content[at..end].fill(rng.below(256) as u8),
            _ => content[at..end].iter_mut().for_each(|byte| *byte = rng.next_u64() as u8),
        }
        at = end;
    }
    let folder = tempfile::tempdir()?;
    let (from, to) = (folder.path().join("disk"), folder.path().join("image"));
    std::fs::write(&from, &content)?;
    let (chunk_size, skip_free) = (Some(64 << 10), SkipFree::No);
    let packing = Packing { chunk_size, skip_free, ..Packing::new("chaos") };
    pack(&from, &to, &packing, &Progress::default())?;
    let image = Image::open(&to, &Progress::default())?;
    let manifest = Arc::new(image.manifest().clone());
    let mut chunks = Vec::new();
    for chunk in 0..manifest.chunks() {
        let mut stored = Vec::new();
        image.read(chunk, &mut stored)?;
        chunks.push(stored);
    }
    Ok(Packed { manifest, content, chunks })
}

/// What happens in an attempt.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Faults {
    /// After how many operations of its disk it is killed.
    kill: Option<u64>,
    /// The power fails when the attempt has ended.
    power: bool,
    failing: Failing,
}

impl Faults {
    const fn is_failing(&self) -> bool {
        self.failing.full || self.failing.error > 0.0
    }
}

#[derive(Clone, Debug)]
struct Scenario {
    seed: u64,
    image: usize,
    /// What has the name at the start: nothing, the image, or the image with other bytes and another length.
    before: Before,
    overwrite: bool,
    damaged: f64,
    /// Whether it is a device, which has its name from the start.
    device: bool,
    /// Whether pages of what the target holds at the start are not on the disk.
    unsynced: bool,
    attempts: Vec<Faults>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Before {
    Nothing,
    Same,
    Other,
}

fn draw(seed: u64) -> Scenario {
    let rng = &mut Rng::stream(seed, 0, 0, "fetch");
    let image = rng.below(IMAGES as u64) as usize;
    let before = match rng.below(6) {
        0 => Before::Same,
        1 => Before::Other,
        _ => Before::Nothing,
    };
    let overwrite = before == Before::Other || rng.chance(0.5);
    let attempts = (0..rng.below(MOST_FAULTY + 1)).map(|_| {
        let failing = match rng.below(6) {
            0 => Failing { full: true, ..Failing::default() },
            1 => Failing { error: 0.03, ..Failing::default() },
            2 => Failing { short: 0.3, ..Failing::default() },
            _ => Failing::default(),
        };
        let most = if rng.chance(0.5) { 30 } else { 200 };
        let kill = rng.chance(0.7).then(|| rng.below(most));
        Faults { kill, power: rng.chance(0.3), failing }
    });
    let attempts = attempts.collect();
    let damaged = if rng.chance(0.5) { 0.1 } else { 0.0 };
    let (device, unsynced) = (rng.chance(0.25), rng.chance(0.3));
    let overwrite = overwrite || unsynced;
    Scenario { seed, image, before, overwrite, damaged, device, unsynced, attempts }
}

/// Returns the scenario of a seed as text.
pub(super) fn scenario(seed: u64) -> String {
    let Scenario { seed, image, before, overwrite, damaged, device, unsynced, attempts } =
        draw(seed);
    let mut text = format!(
        "# Drawn by `rackweave chaos fetch --seed {seed}`, which repeats the run.\n\
         image = {image}\nhas = \"{before:?}\"\noverwrite = {overwrite}\ndamaged = {damaged}\n\
         device = {device}\nunsynced = {unsynced}\n"
    );
    for Faults { kill, power, failing } in attempts {
        // Writing to a string does not fail.
        let _ = writeln!(
            text,
            "\n[[attempt]]\nkilled_after = \"{kill:?}\"\npower_fails = {power}\ndisk = \"{failing:?}\""
        );
    }
    text
}

struct Run<'a> {
    scenario: &'a Scenario,
    image: &'a Packed,
    before: Vec<u8>,
    disk: Disk,
    rng: Rng,
    trace: Vec<String>,
    operations: u64,
    written: u64,
    finished: u64,
    failed: u64,
    /// Chunks that the next attempt must have.
    kept: Vec<u32>,
}

/// How an attempt has ended.
enum End {
    Finished,
    /// With an error, which may be the end of the process.
    Failed(String),
}

impl<'a> Run<'a> {
    fn new(scenario: &'a Scenario, image: &'a Packed) -> Self {
        let disk = Disk::new(Rng::stream(scenario.seed, 0, 0, "disk"));
        let mut before = image.content.clone();
        if scenario.before == Before::Other {
            before.iter_mut().step_by(70_000).for_each(|byte| *byte ^= 1);
            before.extend_from_slice(b"more");
        }
        if scenario.device {
            if scenario.before == Before::Nothing {
                before.fill(0xff);
            }
            // Nothing beyond the image is written.
            before.resize(image.content.len().next_multiple_of(8192) + 4096, 0xff);
            disk.put(NAME.as_bytes(), &before, 0o600, (1_600_000_000, 0));
        } else if scenario.before != Before::Nothing {
            disk.put(NAME.as_bytes(), &before, 0o644, (1_600_000_000, 0));
        }
        if scenario.unsynced {
            disk.lose_pages(NAME.as_bytes());
        }
        Self {
            scenario,
            image,
            before,
            disk,
            rng: Rng::stream(scenario.seed, 0, 0, "chunks"),
            trace: Vec::new(),
            operations: 0,
            written: 0,
            finished: 0,
            failed: 0,
            kept: Vec::new(),
        }
    }

    fn all(&mut self) -> Result<(), String> {
        for (number, faults) in self.scenario.attempts.iter().enumerate() {
            self.trace.push(format!("attempt {number}: {faults:?}"));
            self.attempt(*faults)?;
        }
        for number in 0..CALM {
            self.trace.push(format!("attempt {number} without faults"));
            if self.attempt(Faults::default())? {
                return Ok(());
            }
        }
        Err("an attempt without faults has not ended".to_owned())
    }

    /// Makes an attempt; returns whether it has finished.
    fn attempt(&mut self, faults: Faults) -> Result<bool, String> {
        self.disk.set_failing(faults.failing);
        self.disk.kill_after(faults.kill);
        let end = self.fetch(faults)?;
        let was_killed = self.disk.is_dead();
        self.disk.set_failing(Failing::default());
        self.disk.release();
        let is_finished = matches!(end, End::Finished);
        match end {
            // Nobody learns what a killed process reports.
            End::Finished if was_killed => {}
            End::Finished => {
                self.finished += 1;
                self.trace.push("is finished".to_owned());
                self.check(&self.disk, "it was reported as complete", true)?;
                let after = self.disk.after_a_power_failure();
                self.check(&after, "it was reported as complete, and the power has failed", true)?;
            }
            End::Failed(why) => {
                self.failed += 1;
                self.trace.push(if was_killed { "is killed".to_owned() } else { why });
            }
        }
        if faults.power {
            self.trace.push("the power fails".to_owned());
            self.disk.lose_power();
            self.kept.clear();
        }
        self.check(&self.disk, "it has its name", false)?;
        self.check(
            &self.disk.after_a_power_failure(),
            "it has its name after a power failure",
            false,
        )?;
        Ok(is_finished && !was_killed)
    }

    fn check(&self, disk: &Disk, why: &str, is_complete: bool) -> Result<(), String> {
        if self.scenario.device {
            return self.check_device(disk, why, is_complete);
        }
        match disk.read(NAME.as_bytes()) {
            // It was not all on the disk before.
            Some(_) if self.scenario.unsynced && !is_complete => Ok(()),
            Some((bytes, ..)) if bytes == self.image.content => Ok(()),
            Some((bytes, ..))
                if !is_complete
                    && self.scenario.before == Before::Other
                    && bytes == self.before =>
            {
                Ok(())
            }
            Some(_) => Err(format!("the file has wrong bytes though {why}")),
            None if is_complete => Err(format!("there is no file though {why}")),
            None if self.scenario.before != Before::Nothing => Err("the file is gone".to_owned()),
            None => Ok(()),
        }
    }

    fn check_device(&self, disk: &Disk, why: &str, is_complete: bool) -> Result<(), String> {
        let Some((bytes, ..)) = disk.read(NAME.as_bytes()) else {
            return Err("the device is gone".to_owned());
        };
        let content = &self.image.content;
        if bytes.len() != self.before.len() {
            return Err(format!("the device has another length though {why}"));
        }
        if !self.scenario.unsynced && bytes[content.len()..] != self.before[content.len()..] {
            return Err("the device was written beyond the image".to_owned());
        }
        match !is_complete || bytes.starts_with(content) {
            true => Ok(()),
            false => Err(format!("the device has wrong bytes though {why}")),
        }
    }

    /// Opens the target.
    fn open(&self) -> Result<Target, rackweave_image::ImageError> {
        let config = TargetConfig { overwrite: self.scenario.overwrite, ..TargetConfig::default() };
        let progress = Progress::default();
        let (manifest, path) = (Arc::clone(&self.image.manifest), format!("/srv/{NAME}").into());
        let (root, name) = (self.disk.root(), OsStr::new(NAME));
        match self.scenario.device {
            true => {
                let device = root.open(name, Open::Update).map_err(|source| {
                    rackweave_image::ImageError::Write { path: NAME.into(), source }
                })?;
                Target::open_device(device, path, manifest, &config, &progress)
            }
            false => Target::open_in(root, name, path, manifest, &config, &progress),
        }
    }

    fn fetch(&mut self, faults: Faults) -> Result<End, String> {
        let mut target = match self.open() {
            Ok(target) => target,
            Err(error) => {
                // It may have started from an empty file, which is right if the disk fails.
                if faults.is_failing() {
                    self.kept.clear();
                }
                return Ok(End::Failed(error.to_string()));
            }
        };
        if !faults.is_failing() && !self.disk.is_dead() {
            let lost = self.kept.iter().find(|chunk| !target.have().contains(**chunk));
            if let Some(chunk) = lost {
                return Err(format!("chunk {chunk}, which was written before, is missing"));
            }
        }
        self.kept =
            (0..self.image.manifest.chunks()).filter(|it| target.have().contains(*it)).collect();
        let mut missing: Vec<u32> = target.missing().collect();
        self.trace.push(format!("lacks {} chunks", missing.len()));
        self.rng.shuffle(&mut missing);
        for chunk in missing {
            let stored = &self.image.chunks[chunk as usize];
            if self.rng.chance(self.scenario.damaged) && !stored.is_empty() {
                let mut damaged = stored.clone();
                let at = self.rng.below(damaged.len() as u64) as usize;
                damaged[at] ^= 1 << self.rng.below(8);
                if target.write(chunk, &damaged).is_ok() {
                    return Err(format!("chunk {chunk} is accepted although it is damaged"));
                }
            }
            self.operations += 1;
            for _ in 0..1 + u64::from(self.rng.chance(0.05)) {
                if let Err(error) = target.write(chunk, stored) {
                    return Ok(End::Failed(error.to_string()));
                }
            }
            if self.disk.is_dead() {
                return Ok(End::Failed("it is killed".to_owned()));
            }
            self.written += 1;
            self.kept.push(chunk);
            if self.rng.chance(0.02)
                && let Ok(Some(again)) = target.stored(chunk)
                && again != *stored
            {
                return Err(format!("chunk {chunk} is served with other bytes"));
            }
        }
        match target.finish(&Progress::default()) {
            Ok(()) => {
                self.kept.clear();
                Ok(End::Finished)
            }
            Err(error) => {
                // What a failed sync of a device has lost is missing.
                if self.scenario.device {
                    self.kept.clear();
                }
                Ok(End::Failed(error.to_string()))
            }
        }
    }
}

struct Outcome {
    ran: Ran,
    trace: Vec<String>,
}

fn run(seed: u64) -> Result<Outcome, String> {
    let scenario = draw(seed);
    let image = &images()?[scenario.image];
    let mut run = Run::new(&scenario, image);
    let verdict = catch_unwind(AssertUnwindSafe(|| run.all())).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
        Err(format!("panic: {}", text.unwrap_or("without a message")))
    });
    if let Err(why) = &verdict {
        run.trace.push(why.clone());
    }
    let mut hasher = DefaultHasher::new();
    run.trace.hash(&mut hasher);
    let ran = Ran {
        packet_hops: run.written,
        events: run.operations,
        messages: run.finished,
        failed: run.failed,
        drops: 0,
        digest: hasher.finish(),
        verdict,
    };
    Ok(Outcome { ran, trace: run.trace })
}

/// Returns the scenario of a seed with the trace of its run.
pub(super) fn traced(seed: u64) -> String {
    let trace = run(seed).map_or_else(|why| vec![why], |outcome| outcome.trace);
    super::with_trace(scenario(seed), &trace)
}

pub(super) fn run_seed(seed: u64) -> Result<Ran, String> {
    run(seed).map(|outcome| outcome.ran)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_same_trace_each_time() {
        for seed in [1, 2, 3] {
            let text = traced(seed);
            assert!(text.contains("is finished"), "{text}");
            assert_eq!(text, traced(seed));
            assert_ne!(text, traced(seed + 1));
        }
    }

    /// In seed 890061 an attempt is killed while it writes the record of the chunks that earlier ones have left.
    #[test]
    fn the_first_seeds_hold() {
        for seed in (0..500).chain([890_061]) {
            let ran = run_seed(seed).unwrap();
            assert_eq!(ran.verdict, Ok(()), "{}", traced(seed));
        }
    }
}
