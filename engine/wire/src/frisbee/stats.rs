//! The statistics that a client reports when it leaves.

use super::STATS_BYTES;
use crate::malformed::{Malformed, Reader};

/// The version of the layout: the first field.
const VERSION: u32 = 1;

macro_rules! client_stats {
    ($($(#[$doc:meta])* $field:ident: $type:ty,)+) => {
        /// The statistics of a client, version 1. Frisbee packs the fields in this order after the version, and fills the rest
        /// of [`STATS_BYTES`] with zeros.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct ClientStats {
            $($(#[$doc])* pub $field: $type,)+
        }

        impl ClientStats {
            /// Appends the statistics: [`STATS_BYTES`].
            pub fn encode(&self, out: &mut Vec<u8>) {
                let start = out.len();
                out.extend_from_slice(&VERSION.to_le_bytes());
                $(out.extend_from_slice(&self.$field.to_le_bytes());)+
                out.resize(start + STATS_BYTES as usize, 0);
            }

            /// Reads the payload of a [`super::Body::Leave2`].
            ///
            /// # Errors
            /// If it is too short or has another version.
            pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
                let mut reader = Reader::new("Frisbee's statistics", bytes);
                reader.need("Frisbee's statistics", STATS_BYTES as usize)?;
                let version = reader.array().map(u32::from_le_bytes)?;
                if version != VERSION {
                    let value = u64::from(version);
                    return Err(Malformed::FrisbeeField { what: "version of statistics", value });
                }
                Ok(Self { $($field: reader.array().map(<$type>::from_le_bytes)?,)+ })
            }
        }
    };
}

client_stats! {
    /// Whole seconds of the run.
    run_s: u32,
    /// The rest of the run's time, in milliseconds.
    run_ms: u32,
    /// How long the client waited before it joined, in milliseconds.
    delay_ms: u32,
    /// Bytes that were written to the disk.
    raw_bytes_written: u64,
    /// Bytes of the disk that the image covers, ranges that were skipped included.
    expanded_bytes_written: u64,
    /// The number of chunk buffers.
    chunk_buffers: u32,
    /// How many chunks it requests ahead.
    max_read_ahead: u32,
    /// How many chunks may be incomplete.
    max_in_progress: u32,
    /// The receive timeout in microseconds.
    packet_timeout_us: u32,
    /// The limit of the random delay before joining, in seconds.
    start_delay_s: u32,
    /// How many receive timeouts pass before it makes a request.
    idle_timer: u32,
    /// How long the writer sleeps, in microseconds.
    idle_delay_us: u32,
    /// How long it waits before it requests a chunk again, in microseconds.
    redo_delay_us: u32,
    /// Not 0 if chunks are requested in random order.
    randomize: u32,
    /// How often the writer found no complete chunk.
    no_chunks_ready: u32,
    /// Blocks that were dropped because no buffer was free.
    no_free_chunks: u32,
    /// Blocks of chunks that it already had.
    duplicate_chunk_blocks: u32,
    /// Blocks that it already had of chunks that were incomplete.
    duplicate_blocks: u32,
    /// Partial requests.
    partial_requests: u32,
    /// How often nothing useful was received for the idle time.
    receive_idles: u32,
    /// How often it asked to join.
    join_attempts: u32,
    /// All requests.
    requests: u32,
    /// Blocks that were decompressed.
    decompressed_blocks: u32,
    /// How often the disk writer had nothing to write.
    writer_idles: u32,
    /// Memory for data that waits to be written, in MiB.
    write_buffer_mib: u32,
    /// Blocks in partial requests.
    lost_blocks: u32,
    /// Partial requests for chunks that it had requested before.
    rerequests: u32,
    /// Incomplete chunks that were given up for lack of buffers.
    partial_drops: u32,
    /// Repeated requests for whole chunks.
    full_rerequests: u32,
}
