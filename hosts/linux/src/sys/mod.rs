//! System calls that no crate offers in the form that is needed here: datagrams in batches, with traffic class and
//! segmentation offload in control messages.
#![expect(
    unsafe_code,
    reason = "sendmmsg and recvmmsg take pointers to buffers and control messages"
)]

mod control;
mod cpu;
pub mod ethtool;
mod limits;
mod local;
mod packet;
mod raw;
mod send_batch;
mod standard;
mod tcp;
mod timers;
mod udp;

pub use cpu::has_aes;
pub use limits::{open_file_limit, outlive_file_limit, raise_open_file_limit};
pub use local::{connect_to_own, is_own, listen_privately, make_runtime_folder, runtime_folder};
pub use packet::{Frame, FrameBatch, PacketSocket, drops, set_buffers};
pub use send_batch::SendBatch;
pub use standard::{standard_input, standard_output};
pub use tcp::{bind_late, disconnect, set_receive_low_water, unanswered_for};
pub use timers::{
    at_ordinary_priority, set_ordinary_priority, set_realtime_priority, tighten_timers,
};
pub use udp::{Datagram, Path, ReceiveBatch, UdpSocket, route_to};
