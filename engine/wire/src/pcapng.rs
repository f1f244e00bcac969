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
use rackweave_core::frame::{ETHERNET_FRAME, ETHERNET_GAP, IPV4};
use rackweave_core::{Mixed, Packet, Time};

use crate::Header;
use crate::dump::Line;
use crate::frame::{self, Unframeable};
use crate::homa::Layout;
use crate::{frisbee, orca, reduce};

/// Timestamps are in units of 10^-9 seconds: times are truncated to nanoseconds.
const TIMESTAMP_RESOLUTION: u8 = 9;
/// A UDP header.
const UDP: u32 = 8;

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

/// A header that can be written to a capture.
pub trait Framed: rackweave_core::Header {
    /// Appends the packet's frame without its payload, and returns how long the whole frame is.
    ///
    /// # Errors
    /// See [`Unframeable`].
    fn encode_frame(
        packet: &Packet<Self>,
        layout: Layout,
        out: &mut Vec<u8>,
    ) -> Result<u32, Unframeable>;

    /// Returns the packet as a line of text.
    fn line(packet: &Packet<Self>) -> String;
}

impl Framed for Header {
    fn encode_frame(
        packet: &Packet<Self>,
        layout: Layout,
        out: &mut Vec<u8>,
    ) -> Result<u32, Unframeable> {
        frame::encode(packet, layout, out)
    }

    fn line(packet: &Packet<Self>) -> String {
        Line(packet).to_string()
    }
}

impl Framed for orca::Header {
    fn encode_frame(
        packet: &Packet<Self>,
        _layout: Layout,
        out: &mut Vec<u8>,
    ) -> Result<u32, Unframeable> {
        let mut header = Vec::with_capacity(64);
        match &packet.header {
            // The check would require the payload, so it is left zero.
            Self::Data(data) => {
                let fixed = IPV4 + UDP + orca::header_bytes(&packet.header, 0, false);
                let l3_bytes = u32::from(packet.wire_bytes) - ETHERNET_FRAME - ETHERNET_GAP;
                let label = l3_bytes.saturating_sub(fixed + u32::from(data.len)) / 4;
                orca::encode_relayed(data, label as u8, orca::Check::Crc(0), &mut header);
            }
            control => orca::encode_header(control, 1, None, &[], &mut header),
        }
        frame::encode_datagram(packet, &header, out)
    }

    fn line(packet: &Packet<Self>) -> String {
        format!("{} > {} Orca {:?}", packet.src, packet.dst, packet.header)
    }
}

impl Framed for frisbee::Header {
    fn encode_frame(
        packet: &Packet<Self>,
        _layout: Layout,
        out: &mut Vec<u8>,
    ) -> Result<u32, Unframeable> {
        let mut header = Vec::with_capacity(40);
        frisbee::encode(&packet.header, &mut header);
        frame::encode_datagram(packet, &header, out)
    }

    fn line(packet: &Packet<Self>) -> String {
        let mut line = if packet.dst == frisbee::TO_GROUP {
            format!("{} > group ", packet.src)
        } else {
            format!("{} > {} ", packet.src, packet.dst)
        };
        packet.header.fmt_line(&mut line).expect("a string takes any text");
        line
    }
}

impl Framed for reduce::Header {
    fn encode_frame(
        packet: &Packet<Self>,
        _layout: Layout,
        out: &mut Vec<u8>,
    ) -> Result<u32, Unframeable> {
        let mut header = Vec::with_capacity(40);
        reduce::encode(&packet.header, &mut header);
        frame::encode_datagram(packet, &header, out)
    }

    fn line(packet: &Packet<Self>) -> String {
        let mut line = format!("{} > {} ", packet.src, packet.dst);
        packet.header.fmt_line(&mut line).expect("a string takes any text");
        line
    }
}

impl<T: Framed, G: Framed> Framed for Mixed<T, G> {
    fn encode_frame(
        packet: &Packet<Self>,
        layout: Layout,
        out: &mut Vec<u8>,
    ) -> Result<u32, Unframeable> {
        match packet.header {
            Self::Transport(header) => T::encode_frame(&packet.map(|_| header), layout, out),
            Self::Group(header) => G::encode_frame(&packet.map(|_| header), layout, out),
        }
    }

    fn line(packet: &Packet<Self>) -> String {
        match packet.header {
            Self::Transport(header) => T::line(&packet.map(|_| header)),
            Self::Group(header) => G::line(&packet.map(|_| header)),
        }
    }
}

/// A captured packet in its encoded form.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
pub struct Frame {
    at: Time,
    interface: u32,
    original_len: u32,
    bytes: Box<[u8]>,
    comment: Box<str>,
}

impl Frame {
    /// Encodes the frame of a packet whose first bit crossed an interface at this time.
    ///
    /// # Errors
    /// See [`Unframeable`].
    pub fn new<H: Framed>(
        at: Time,
        interface: u32,
        packet: &Packet<H>,
        layout: Layout,
    ) -> Result<Self, Unframeable> {
        let mut bytes = Vec::with_capacity(frame::MAX_HEADER_BYTES as usize);
        let original_len = H::encode_frame(packet, layout, &mut bytes)?;
        let comment = H::line(packet).into_boxed_str();
        Ok(Self { at, interface, original_len, bytes: bytes.into_boxed_slice(), comment })
    }

    /// A frame whose first bytes are known, and how long it was with all of them.
    #[must_use]
    pub fn from_bytes(
        at: Time,
        interface: u32,
        bytes: Box<[u8]>,
        original_len: u32,
        comment: String,
    ) -> Self {
        Self { at, interface, original_len, bytes, comment: comment.into_boxed_str() }
    }
}

/// A writer of a capture file.
pub struct CaptureWriter<W: Write> {
    writer: PcapNgWriter<W>,
    layout: Layout,
    comments: bool,
}

impl<W: Write> CaptureWriter<W> {
    /// Starts a capture with these interfaces, numbered in this order.
    ///
    /// # Errors
    /// If the writer fails.
    pub fn new<'a>(
        writer: W,
        layout: Layout,
        interfaces: impl IntoIterator<Item = &'a str>,
    ) -> Result<Self, CaptureError> {
        // The byte order is fixed, so that a run's files are the same on every machine.
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
        Ok(Self { writer, layout, comments: true })
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
    pub fn write<H: Framed>(
        &mut self,
        at: Time,
        interface: u32,
        packet: &Packet<H>,
    ) -> Result<(), CaptureError> {
        self.write_frame(&Frame::new(at, interface, packet, self.layout)?)
    }

    /// Writes a frame.
    ///
    /// # Errors
    /// If there is no such interface, or the writer fails.
    pub fn write_frame(&mut self, frame: &Frame) -> Result<(), CaptureError> {
        let mut options = Vec::new();
        if self.comments {
            options.push(EnhancedPacketOption::Comment(Cow::Borrowed(&*frame.comment)));
        }
        let block = EnhancedPacketBlock {
            interface_id: frame.interface,
            timestamp: Duration::from_nanos(frame.at.as_ns()),
            original_len: frame.original_len,
            data: Cow::Borrowed(&*frame.bytes),
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
