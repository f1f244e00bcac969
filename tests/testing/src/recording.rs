//! Packets that a Linux kernel with HomaModule sent.

const HOMA_MODULE: &str = include_str!("homa-module.txt");

/// A recorded packet.
#[derive(Clone, Debug, PartialEq)]
pub struct Recorded {
    /// The priority in its TOS, 0 to 7.
    pub priority: u8,
    /// The bytes after IP's header.
    pub l4_bytes: usize,
    /// The first of these, which were kept: Homa's headers.
    pub bytes: Vec<u8>,
}

impl Recorded {
    /// What follows IP's header, with a payload of sevens.
    #[must_use]
    pub fn whole(&self) -> Vec<u8> {
        let mut bytes = self.bytes.clone();
        bytes.resize(self.l4_bytes, 7);
        bytes
    }
}

/// Returns the packets of a client in the order in which it sent them.
///
/// # Panics
/// If the recording is damaged.
#[must_use]
pub fn homa_module() -> Vec<Recorded> {
    let lines = HOMA_MODULE.lines().filter(|line| !line.starts_with('#'));
    lines.map(|line| packet(line).unwrap_or_else(|| panic!("not a packet: {line}"))).collect()
}

/// A packet in a line: priority, bytes after IP's header, hexadecimal digits.
fn packet(line: &str) -> Option<Recorded> {
    let mut fields = line.split(' ');
    let (priority, l4_bytes) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
    let digits = fields.next()?;
    let byte = |at| u8::from_str_radix(digits.get(at..at + 2)?, 16).ok();
    let bytes = (0..digits.len()).step_by(2).map(byte).collect::<Option<Vec<u8>>>()?;
    (bytes.len() <= l4_bytes).then_some(Recorded { priority, l4_bytes, bytes })
}
