//! The look of lines: a colour, and a dash and a marker for readers who cannot distinguish the colours.

use std::fmt::Write;

use serde::{Deserialize, Serialize};

use super::px;

/// The colours on white. They were found by search: they have a contrast of at least 3 to 1, and are far from each
/// other also for protanopes, deuteranopes and tritanopes. A test computes both properties.
pub const LIGHT: [&str; 6] = ["#154a9f", "#b4520b", "#12a08c", "#7c69c2", "#b88c01", "#6e1541"];
/// The same colours for the dark page.
pub const DARK: [&str; 6] = ["#2f86f6", "#c26a26", "#62f5bb", "#c6b9ff", "#e0b420", "#fd5d9c"];

/// The dashes, as in `stroke-dasharray`; the first is a solid line.
pub const DASHES: [&str; 6] = ["", "7 3", "2 3", "9 3 2 3", "14 3", "5 2 1 2 1 2"];

/// The number of marker shapes.
pub const MARKERS: usize = 6;

/// The look of a line, as indices that wrap around.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Look {
    /// The index in the palette.
    pub colour: usize,
    /// The index of dash and marker.
    pub dash: usize,
}

impl Look {
    /// Returns the look of the n-th line where lines have nothing in common.
    #[must_use]
    pub const fn nth(index: usize) -> Self {
        // Where colours repeat, dashes must not.
        Self { colour: index % LIGHT.len(), dash: index + index / LIGHT.len() }
    }

    pub(crate) fn class(self) -> String {
        format!("s{}", self.colour % LIGHT.len())
    }

    /// Returns the class of the lines of this look in a page, by which a legend hides them.
    #[must_use]
    pub fn line_class(self) -> String {
        format!("l{}-{}", self.colour % LIGHT.len(), self.dash)
    }

    pub(super) fn dash_attribute(self) -> String {
        match DASHES[self.dash % DASHES.len()] {
            "" => String::new(),
            dash => format!(" stroke-dasharray=\"{dash}\""),
        }
    }

    /// Draws a marker with an optional tooltip.
    pub(super) fn mark(self, svg: &mut String, (x, y): (f64, f64), note: Option<&str>) {
        let outline = match self.dash % MARKERS {
            0 => "m-3.6 0a3.6 3.6 0 1 0 7.2 0a3.6 3.6 0 1 0 -7.2 0z",
            1 => "m-3.2 -3.2h6.4v6.4h-6.4z",
            2 => "m0 -4.2l4 7.2h-8z",
            3 => "m0 -4.6l4.2 4.6l-4.2 4.6l-4.2 -4.6z",
            4 => "m0 4.2l4 -7.2h-8z",
            _ => "m-1.5 -4h3v2.5h2.5v3h-2.5v2.5h-3v-2.5h-2.5v-3h2.5z",
        };
        let _ = write!(
            svg,
            "<path class=\"mark\" d=\"M{} {}{outline}\" fill=\"currentColor\"",
            px(x),
            px(y)
        );
        match note {
            Some(note) => {
                let _ = write!(svg, "><title>{}</title></path>", super::escape(note));
            }
            None => svg.push_str("/>"),
        }
    }

    /// Draws a sample of the line, 28 by 10 pixels from the origin.
    pub(super) fn draw_swatch(self, svg: &mut String, marked: bool) {
        let _ = write!(
            svg,
            "<g class=\"{}\"><path d=\"M0 5H28\" stroke=\"currentColor\" stroke-width=\"2\"{}/>",
            self.class(),
            self.dash_attribute()
        );
        if marked {
            self.mark(svg, (14.0, 5.0), None);
        }
        svg.push_str("</g>");
    }
}

/// Returns a sample of a line for a legend outside the chart.
#[must_use]
pub fn swatch(look: Look, marked: bool) -> String {
    let mut svg = String::from(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"28\" height=\"10\" \
         viewBox=\"0 0 28 10\" aria-hidden=\"true\">",
    );
    look.draw_swatch(&mut svg, marked);
    svg.push_str("</svg>");
    svg
}

/// Returns the colours of the classes for a chart in a separate file, on white.
pub(super) fn standalone_style() -> String {
    let mut style = String::from(
        "<style>.ink{color:#1b1f24}.soft{color:#57606a}.axis{color:#8c959f}.grid{color:#e4e7eb}\
         .mark{stroke:#fff}",
    );
    for (index, colour) in LIGHT.iter().enumerate() {
        let _ = write!(style, ".s{index}{{color:{colour}}}");
    }
    style.push_str("</style>");
    style
}

#[cfg(test)]
mod tests {
    use super::*;

    type Linear = [f64; 3];

    /// Severe colour blindness as linear maps of linear RGB (Machado et al. 2009, table for severity 1.0), and normal
    /// vision.
    const SIGHTS: [(&str, [Linear; 3]); 4] = [
        ("all", [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]),
        (
            "prot",
            [
                [0.152_286, 1.052_583, -0.204_868],
                [0.114_503, 0.786_281, 0.099_216],
                [-0.003_882, -0.048_116, 1.051_998],
            ],
        ),
        (
            "deut",
            [
                [0.367_322, 0.860_646, -0.227_968],
                [0.280_085, 0.672_501, 0.047_413],
                [-0.011_820, 0.042_940, 0.968_881],
            ],
        ),
        (
            "trit",
            [
                [1.255_528, -0.076_749, -0.178_779],
                [-0.078_411, 0.930_809, 0.147_602],
                [0.004_733, 0.691_367, 0.303_900],
            ],
        ),
    ];

    fn linear(hex: &str) -> Linear {
        [1, 3, 5].map(|at| {
            let c = f64::from(u8::from_str_radix(&hex[at..at + 2], 16).unwrap()) / 255.0;
            if c <= 0.04045 { c / 12.92 } else { libm::pow((c + 0.055) / 1.055, 2.4) }
        })
    }

    fn times(matrix: &[Linear; 3], v: Linear) -> Linear {
        matrix.map(|row| row.iter().zip(v).map(|(a, b)| a * b).sum::<f64>().max(0.0))
    }

    /// Converts to Oklab, in which distances approximate perceived differences.
    fn oklab(rgb: Linear) -> Linear {
        let lms = times(
            &[
                [0.412_221_47, 0.536_332_54, 0.051_445_99],
                [0.211_903_50, 0.680_699_55, 0.107_396_96],
                [0.088_302_46, 0.281_718_84, 0.629_978_70],
            ],
            rgb,
        )
        .map(libm::cbrt);
        [
            [0.210_454_26, 0.793_617_79, -0.004_072_05],
            [1.977_998_50, -2.428_592_21, 0.450_593_71],
            [0.025_904_04, 0.782_771_77, -0.808_675_77],
        ]
        .map(|row| row.iter().zip(lms).map(|(a, b)| a * b).sum())
    }

    fn contrast(a: &str, b: &str) -> f64 {
        let luminance = |hex: &str| {
            let [r, g, b] = linear(hex);
            0.2126 * r + 0.7152 * g + 0.0722 * b + 0.05
        };
        let (a, b) = (luminance(a), luminance(b));
        a.max(b) / a.min(b)
    }

    #[test]
    fn colours_are_distinguishable_by_everyone() {
        for (palette, ground) in [(LIGHT, "#ffffff"), (DARK, "#16181d")] {
            for colour in palette {
                assert!(contrast(colour, ground) >= 3.0, "{colour} on {ground}");
            }
            for (sight, matrix) in &SIGHTS {
                for (i, a) in palette.iter().enumerate() {
                    for b in &palette[i + 1..] {
                        let (p, q) =
                            (oklab(times(matrix, linear(a))), oklab(times(matrix, linear(b))));
                        let distance: f64 = p.iter().zip(q).map(|(p, q)| (p - q) * (p - q)).sum();
                        assert!(distance.sqrt() > 0.10, "{a} {b} {sight}: {}", distance.sqrt());
                    }
                }
            }
        }
    }

    #[test]
    fn looks_repeat_late() {
        let looks: Vec<Look> = (0..30).map(Look::nth).collect();
        let shown = |l: &Look| (l.colour % LIGHT.len(), l.dash % DASHES.len());
        for (i, a) in looks.iter().enumerate() {
            assert!(looks[i + 1..].iter().all(|b| shown(a) != shown(b)), "{i}");
        }
    }
}
