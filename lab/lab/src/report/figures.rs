//! The charts of a page as figures, and the script that reads out, zooms and saves them.
//!
//! Without the script a page has all of its charts, and the values of points under the pointer; readers choose among
//! charts by the style sheet alone.

use std::fmt::Write;

use super::charts::{Section, spread};
use super::svg::{self, Chart, Theme, escape};

/// What the scripts of all pages share, a link to the file of the crate `rackweave-page`, and the script of pages with charts.
const SCRIPT: &str = concat!(include_str!("elements.js"), "\n", include_str!("report.js"));

/// The digest of the script element's text, by which the policy of a page admits it and no other; a test computes it.
const DIGEST: &str = "sha256-4vyd3J95BY7EJQO/JatubbbgGdE1JU11dHcdYai4YrM=";

/// The number of charts in a row beyond which others are folded.
const MAX_OPEN: usize = 3;

/// Returns the elements for the head of a page: it loads nothing, and runs no other script than [`script`].
#[must_use]
pub fn policy() -> String {
    format!(
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; \
         script-src '{DIGEST}'; base-uri 'none'; form-action 'none'\"/>"
    )
}

/// Returns the tag that begins the body of a page, with the colours of lines in saved charts.
#[must_use]
pub fn body() -> String {
    format!("<body data-colours=\"{}\">\n", svg::LIGHT.join(" "))
}

/// Returns the script element, for the end of a page.
#[must_use]
pub fn script() -> String {
    format!("<script>{}</script>\n", script_text())
}

/// Returns the text of the script element, which XML takes as text too.
fn script_text() -> String {
    format!("//<![CDATA[\n{SCRIPT}//]]>")
}

/// Writes a chart with a title, a `legend` in markup, and the data from which the script draws it again. `class` is that of the figure.
/// Legend and class may be empty.
pub fn figure(page: &mut String, chart: &Chart, class: &str, legend: &str) {
    let class = if class.is_empty() { String::new() } else { format!(" class=\"{class}\"") };
    let data =
        chart.data().map(|data| format!("<script type=\"application/json\">{data}</script>"));
    let _ = writeln!(
        page,
        "<figure{class}><figcaption>{}</figcaption>{legend}{}{}</figure>",
        escape(&chart.title),
        chart.render(Theme::Page),
        data.unwrap_or_default()
    );
}

/// Writes the names of lines with their looks.
pub(super) fn legend(page: &mut String, section: &Section) {
    page.push_str("<ul class=\"legend\">");
    for (label, look, marked) in &section.legend {
        let _ = write!(
            page,
            "<li><label><input type=\"checkbox\" checked=\"checked\" class=\"{}\"/>{}{}</label></li>",
            look.line_class(),
            svg::swatch(*look, *marked),
            escape(label)
        );
    }
    page.push_str("</ul>\n");
}

/// Writes the rows of charts of a section, without charts that would be empty.
pub(super) fn rows(page: &mut String, section: &Section) {
    for row in &section.rows {
        let charts: Vec<&Chart> = row.charts.iter().filter(|chart| chart.has_data()).collect();
        let panels: Vec<&[&Chart]> = charts.chunk_by(|a, b| are_alternatives(a, b)).collect();
        if panels.is_empty() {
            continue;
        }
        if let Some(summary) = &row.folded_as {
            let _ = writeln!(page, "<details><summary>{}</summary>", escape(summary));
        }
        let is_open =
            |nth: &usize| row.folded_as.is_some() || spread(panels.len(), MAX_OPEN).contains(nth);
        let (open, others): (Vec<usize>, Vec<usize>) = (0..panels.len()).partition(is_open);
        grid(page, open.iter().map(|nth| panels[*nth]));
        if !others.is_empty() {
            let _ = writeln!(page, "<details><summary>{} more charts</summary>", others.len());
            grid(page, others.iter().map(|nth| panels[*nth]));
            page.push_str("</details>\n");
        }
        if row.folded_as.is_some() {
            page.push_str("</details>\n");
        }
    }
}

/// Returns whether a section has anything to draw.
pub(super) fn has_charts(section: &Section) -> bool {
    section.rows.iter().flat_map(|row| &row.charts).any(Chart::has_data)
}

/// Returns whether two adjacent charts show one measure, and a page one of them at a time.
fn are_alternatives(a: &Chart, b: &Chart) -> bool {
    let (Some(choice), Some(other)) = (&a.choice, &b.choice) else { return false };
    choice.of == other.of && a.y.title == b.y.title
}

fn grid<'a>(page: &mut String, panels: impl ExactSizeIterator<Item = &'a [&'a Chart]>) {
    let _ = writeln!(page, "<div class=\"charts of-{}\">", panels.len().min(3));
    for panel in panels {
        match panel {
            [chart] => figure(page, chart, "", ""),
            charts => choice(page, charts),
        }
    }
    page.push_str("</div>\n");
}

/// Writes charts among which readers choose; the style sheet shows the chosen one.
fn choice(page: &mut String, charts: &[&Chart]) {
    let choices: Vec<_> = charts.iter().filter_map(|chart| chart.choice.as_ref()).collect();
    let first = choices.iter().position(|choice| choice.first).unwrap_or(0);
    // Each choice on the page has a name of its own.
    let name = page.matches("<fieldset").count();
    let of = choices.first().map_or("", |choice| choice.of);
    let _ = write!(page, "<div class=\"panel\"><fieldset class=\"choice\" aria-label=\"{of}\">");
    for (nth, choice) in choices.iter().enumerate() {
        let checked = if nth == first { " checked=\"checked\"" } else { "" };
        let _ = write!(
            page,
            "<label><input type=\"radio\" name=\"choice{name}\" class=\"o{nth}\"{checked}/>{}</label>",
            choice.name
        );
    }
    page.push_str("</fieldset>\n");
    for (nth, chart) in charts.iter().enumerate() {
        figure(page, chart, &format!("o{nth}"), "");
    }
    page.push_str("</div>\n");
}

#[cfg(test)]
mod tests {
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;

    use super::*;

    #[test]
    fn the_policy_admits_the_script() {
        let text = script_text();
        let digest = ring::digest::digest(&ring::digest::SHA256, text.as_bytes());
        assert_eq!(
            DIGEST,
            format!("sha256-{}", STANDARD.encode(digest)),
            "write this digest into figures.rs"
        );
        assert!(!SCRIPT.contains("]]>") && !SCRIPT.contains("</script"));
    }
}
