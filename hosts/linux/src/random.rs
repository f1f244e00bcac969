//! Random numbers that an attacker cannot guess.

use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};

/// Returns a random number from the kernel, for secrets and for names that must not collide.
///
/// # Panics
/// If the kernel provides no random numbers: nothing that depends on secrets may run then.
#[must_use]
pub fn random() -> u128 {
    let mut bytes = [0; 16];
    let mut filled = 0;
    while filled < bytes.len() {
        match getrandom(&mut bytes[filled..], GetRandomFlags::empty()) {
            Ok(more) => filled += more,
            Err(Errno::INTR) => {}
            Err(error) => panic!("the kernel has no random numbers: {error}"),
        }
    }
    u128::from_ne_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use super::random;

    #[test]
    fn every_byte_is_random_and_no_number_comes_twice() {
        let numbers: Vec<u128> = (0..100).map(|_| random()).collect();
        let distinct: std::collections::BTreeSet<u128> = numbers.iter().copied().collect();
        assert_eq!(distinct.len(), numbers.len());
        for byte in 0..16 {
            let values = numbers.iter().map(|number| number >> (8 * byte) & 0xff);
            assert!(values.collect::<std::collections::BTreeSet<_>>().len() > 20, "byte {byte}");
        }
    }
}
