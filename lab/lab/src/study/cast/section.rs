//! The section of the page on casts, and what its charts are drawn from.

use std::collections::BTreeMap;

use super::tables::{CAST, FILES, RECEIVER};
use super::{CastConfig, CastDetail};
use crate::redraw::Rows;
use crate::report::charts::{Section, cumulative};
use crate::report::html::KindSection;
use crate::results::PointResult;
use crate::study::StudyDetail;
use crate::tables::Table;

pub(super) fn write(section: &mut KindSection<'_, CastConfig>) {
    section.head(
        "Files to many",
        "Execution is the time from the first chunk of the first \
         file to the last acknowledgement of the last one. A file is sent from its first chunk to its \
         last acknowledgement; a receiver waits from its acknowledgement of one file until the next one \
         is there. Copies are bytes on the sender's links, headers included, for each byte of the files.\
         ",
    );
    section.table(CAST);
    section.each("Each receiver", RECEIVER, |cast| &cast.receivers);
    if let Some(charts) = times(section.points()) {
        section.charts(&charts);
    }
}

/// Returns the charts of send and wait times; `None` if no point has any.
fn times(points: &[PointResult]) -> Option<Section> {
    points.iter().find(|point| times_us(point, true).is_some())?;
    let of =
        |sending: bool| move |point: &PointResult| times_us(point, sending).unwrap_or_default();
    Some(cumulative(
        points,
        &[
            ("Send times", "share of files", &of(true)),
            ("Wait times of receivers", "share of waits", &of(false)),
        ],
    ))
}

/// Returns the send times of a cast's files if `sending`, or else the times that its receivers waited, in microseconds; `None` without a
/// cast.
pub fn times_us(point: &PointResult, sending: bool) -> Option<Vec<f64>> {
    let Some(StudyDetail::Cast(detail)) = &point.detail else { return None };
    Some(detail.times_us(sending))
}

/// Adds the times of a table of files or of receivers to the points that they are of.
pub(super) fn restore(
    table: &Table,
    points: &mut BTreeMap<u64, &mut PointResult>,
) -> Result<(), String> {
    let rows = Rows::of(table)?;
    let is_sending = table.name == FILES;
    let times = rows.reals(if is_sending { "send_us" } else { "wait_us" })?;
    rows.each(points, |row, point| {
        let detail = point
            .detail
            .get_or_insert_with(|| StudyDetail::Cast(CastDetail::Times([Vec::new(), Vec::new()])));
        let StudyDetail::Cast(CastDetail::Times(all)) = detail else { return };
        let own = &mut all[usize::from(!is_sending)];
        own.extend(Some(times.at(row)).filter(|us| us.is_finite()));
    });
    Ok(())
}
