//! Packets as a pcapng file, for Wireshark and tcpdump.
//!
//! Frames contain their headers only, and their original length. Each has its line of [`dump`](crate::dump) as a
//! comment, since Wireshark dissects TCP but not Homa.

use std::borrow::Cow;
use std::io::{self, Write};
use std::time::Duration;

use pcap_file::pcapng::PcapNgWriter;
use pcap_file::pcapng::blocks::enhanced_packet::{EnhancedPacketBlock, EnhancedPacketOption};
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption,
};
use pcap_file::{DataLink, Endianness, PcapError};
use rackweave_core::{Packet, Time};

use crate::Header;
use crate::dump::Line;
use crate::frame::{self, Unframeable};
use crate::homa::Layout;

/// Timestamps are in units of 10^-9 seconds: times are truncated to nanoseconds.
const TIMESTAMP_RESOLUTION: u8 = 9;
const PS_PER_NS: u64 = 1000;

/// Reasons why a capture could not be written.
#[derive(Debug, thiserror::Error)]
pub enum CaptureError {
    /// The file could not be written.
    #[error("the capture cannot be written")]
    Io(#[from] io::Error),
    /// The packet has no frame.
    #[error(transparent)]
    Packet(#[from] Unframeable),
    /// The packet's interface was not declared at the start.
    #[error("the capture has no interface {0}")]
    NoInterface(u32),
}

/// Writes a capture.
pub struct CaptureWriter<W: Write> {
    writer: PcapNgWriter<W>,
    layout: Layout,
    comments: bool,
    frame: Vec<u8>,
}

impl<W: Write> CaptureWriter<W> {
    /// Begins a capture with these interfaces, numbered in this order.
    ///
    /// # Errors
    /// If the writer fails.
    pub fn new<'a>(
        writer: W,
        layout: Layout,
        interfaces: impl IntoIterator<Item = &'a str>,
    ) -> Result<Self, CaptureError> {
        // A fixed byte order, so that a run's files are the same on every machine.
        let mut writer =
            PcapNgWriter::with_endianness(writer, Endianness::Little).map_err(from_pcap)?;
        for name in interfaces {
            let block = InterfaceDescriptionBlock {
                linktype: DataLink::ETHERNET,
                snaplen: 0,
                options: vec![
                    InterfaceDescriptionOption::IfName(Cow::Borrowed(name)),
                    InterfaceDescriptionOption::IfTsResol(TIMESTAMP_RESOLUTION),
                ],
            };
            writer.write_pcapng_block(block).map_err(from_pcap)?;
        }
        let frame = Vec::with_capacity(frame::MAX_HEADER_BYTES as usize);
        Ok(Self { writer, layout, comments: true, frame })
    }

    /// Sets whether each packet has its line of text as a comment (a third of the file's size).
    #[must_use]
    pub fn with_comments(mut self, comments: bool) -> Self {
        self.comments = comments;
        self
    }

    /// Writes a packet whose first bit crossed an interface at this time.
    ///
    /// # Errors
    /// If there is no such interface, the packet has no frame (nothing is written then), or the
    /// writer fails.
    pub fn write(
        &mut self,
        at: Time,
        interface: u32,
        packet: &Packet<Header>,
    ) -> Result<(), CaptureError> {
        self.frame.clear();
        let original_len = frame::encode(packet, self.layout, &mut self.frame)?;
        let mut options = Vec::new();
        if self.comments {
            options.push(EnhancedPacketOption::Comment(Cow::Owned(Line(packet).to_string())));
        }
        let block = EnhancedPacketBlock {
            interface_id: interface,
            timestamp: Duration::from_nanos(at.0 / PS_PER_NS),
            original_len,
            data: Cow::Borrowed(&self.frame),
            options,
        };
        self.writer.write_pcapng_block(block).map_err(|error| match error {
            PcapError::InvalidInterfaceId(id) => CaptureError::NoInterface(id),
            other => from_pcap(other),
        })?;
        Ok(())
    }

    /// Flushes, and returns the writer.
    ///
    /// # Errors
    /// If flushing fails.
    pub fn finish(self) -> Result<W, CaptureError> {
        let mut writer = self.writer.into_inner();
        writer.flush()?;
        Ok(writer)
    }
}

fn from_pcap(error: PcapError) -> CaptureError {
    CaptureError::Io(match error {
        PcapError::IoError(error) => error,
        other => io::Error::other(other),
    })
}
