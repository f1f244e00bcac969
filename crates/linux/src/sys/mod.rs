//! System calls that no crate offers as they are needed here: datagrams in batches, with traffic class and
//! segmentation offload in control messages.
#![expect(
    unsafe_code,
    reason = "sendmmsg and recvmmsg take pointers to buffers and control messages"
)]

mod control;
mod timers;
mod udp;

pub use timers::tighten_timers;
pub use udp::{Datagram, ReceiveBatch, SendBatch, UdpSocket};
