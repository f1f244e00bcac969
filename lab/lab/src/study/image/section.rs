//! The section of the page on images.

use super::ImageConfig;
use super::tables::{IMAGE, IMAGE_CLIENT};
use crate::report::html::KindSection;

pub(super) fn write(section: &mut KindSection<'_, ImageConfig>) {
    section.head(
        "An image for many",
        "The run time of a client is the time from its start \
         until it has written the image; the makespan is that from the first start until all have. \
         Copies are bytes of the image that the server has sent for each byte of it, and the duplicate \
         share is the part of them that it had sent before.",
    );
    section.table(IMAGE);
    section.each("Each client", IMAGE_CLIENT, |image| &image.clients);
}
