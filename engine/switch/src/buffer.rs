//! One buffer for all ports of a switch, with dynamic thresholds (Choudhury and Hahne, 1998).

/// A shared buffer: a port may hold up to `alpha` times the bytes that are free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedBuffer {
    bytes: u64,
    used: u64,
    /// The threshold factor alpha, in units of 1/256.
    alpha_256: u64,
}

impl SharedBuffer {
    /// An empty buffer of `bytes`, with `alpha` in units of 1/256.
    #[must_use]
    pub const fn new(bytes: u64, alpha_256: u64) -> Self {
        Self { bytes, used: 0, alpha_256 }
    }

    /// Whether a packet may join a port that already holds `port_bytes`.
    #[must_use]
    pub fn admits(&self, port_bytes: u64, packet_bytes: u64) -> bool {
        let free = self.bytes.saturating_sub(self.used);
        let limit = u128::from(free) * u128::from(self.alpha_256) / 256;
        packet_bytes <= free && u128::from(port_bytes + packet_bytes) <= limit
    }

    /// Counts a packet that has joined a port's queue.
    pub const fn take(&mut self, packet_bytes: u64) {
        self.used += packet_bytes;
    }

    /// Counts a packet that has left a port's queue.
    ///
    /// # Panics
    ///
    /// If more bytes leave than have joined.
    pub const fn give_back(&mut self, packet_bytes: u64) {
        self.used -= packet_bytes;
    }

    /// Number of bytes in use.
    #[must_use]
    pub const fn used(&self) -> u64 {
        self.used
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lone_port_with_alpha_one_gets_half() {
        let mut buffer = SharedBuffer::new(10_000, 256);
        let mut port = 0;
        while buffer.admits(port, 100) {
            buffer.take(100);
            port += 100;
        }
        assert_eq!(port, 5_000, "q = alpha (B - q), so q = B/2");
    }

    #[test]
    fn never_more_than_it_has() {
        let mut buffer = SharedBuffer::new(1_000, 256 * 100);
        let mut ports = [0_u64; 4];
        for i in 0..100 {
            let port = &mut ports[i % 4];
            if buffer.admits(*port, 70) {
                buffer.take(70);
                *port += 70;
            }
        }
        assert!(buffer.used() <= 1_000);
        assert_eq!(buffer.used(), ports.iter().sum::<u64>());
    }
}
