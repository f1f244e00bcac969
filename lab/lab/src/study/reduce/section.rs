//! The section of the page on jobs.

use super::ReduceConfig;
use super::tables::{REDUCE, REDUCE_JOB};
use crate::report::html::KindSection;

pub(super) fn write(section: &mut KindSection<'_, ReduceConfig>) {
    section.head(
        "Jobs",
        "A job completes when its master has reduced all sums. Pairs to masters are the \
         pairs and sums that reached them for each pair that workers had; the least that can is one for each \
         distinct word.",
    );
    section.table(REDUCE);
    section.each("Each job", REDUCE_JOB, |reduce| &reduce.jobs);
}
