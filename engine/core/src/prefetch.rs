//! Requests for cache lines ahead of their use.
//!
//! In a simulation of a large fabric nearly every event waits for memory. Requesting the lines of many events
//! before the first of them is handled lets these waits overlap. An ordinary read whose result is not used does not have
//! the same effect: the processor retires it in program order, so that it waits there instead.

#![allow(
    unsafe_code,
    reason = "the instruction has no safe form; it reads nothing and cannot fault"
)]

/// Requests the cache line that holds the first byte of a value. It has no effect but on speed, and none at all on
/// processors other than x86-64 and AArch64.
#[inline(always)]
pub fn prefetch<T: ?Sized>(value: &T) {
    let address: *const T = value;
    request(address.cast());
}

/// Requests the first two cache lines of a value that begins at a line of its own: more than 64 bytes.
#[inline(always)]
pub fn prefetch_two<T>(value: &T) {
    let address: *const T = value;
    request(address.cast());
    request(address.cast::<i8>().wrapping_add(64));
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline(always)]
fn request(address: *const i8) {
    use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    // SAFETY: the instruction is a hint. It does not access memory in the sense of the language, and is defined for
    // every address.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(address) }
}

#[cfg(all(target_arch = "aarch64", not(miri)))]
#[inline(always)]
fn request(address: *const i8) {
    // SAFETY: as above. The instruction changes no register and no flag.
    unsafe {
        core::arch::asm!(
            "prfm pldl1keep, [{address}]",
            address = in(reg) address,
            options(nostack, preserves_flags, readonly)
        );
    }
}

#[cfg(any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
#[inline(always)]
const fn request(_address: *const i8) {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_value_can_be_prefetched() {
        let values = [7_u64; 100];
        for value in &values {
            prefetch(value);
            prefetch_two(value);
        }
        prefetch(&values[..0]);
        prefetch("");
        assert!(values.iter().all(|value| *value == 7));
    }
}
