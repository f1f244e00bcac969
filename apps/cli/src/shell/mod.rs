//! What all commands have in common: exit codes, output, signals, values of arguments and machine output.

use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};

use rackweave_lab::report::wrap::PLAIN_WIDTH;

#[cfg(feature = "hosts")]
pub(crate) mod events;
pub(crate) mod exit;
pub(crate) mod signal;
#[cfg(feature = "hosts")]
pub(crate) mod values;

/// Whether something could not be written to standard output.
static IS_OUTPUT_LOST: AtomicBool = AtomicBool::new(false);

/// Whether [`print()`] could not write something.
pub(crate) fn is_output_lost() -> bool {
    IS_OUTPUT_LOST.load(Ordering::Relaxed)
}

/// Writes to stdout, and returns the exit code of that. Where stdout cannot be written (a full disk), stderr says so, and the command goes
/// on: a receiver of files does not end because its log is full. A reader that has gone away (`| head`) is not an error.
///
/// # Errors
/// None. A command that only prints returns the result as its own; for others `main` remembers it.
pub(crate) fn print(text: &str) -> miette::Result<u8> {
    let mut stdout = std::io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            let mut stderr = std::io::stderr().lock();
            // If stderr is closed too, the error cannot be reported anywhere.
            let _ = writeln!(stderr, "error: cannot write to standard output: {error}");
            IS_OUTPUT_LOST.store(true, Ordering::Relaxed);
            Ok(exit::FAILED)
        }
        _ => Ok(exit::DONE),
    }
}

/// The width of text on standard output: the terminal's, or what is usual in files and pipes.
pub(crate) fn text_width() -> usize {
    let size = terminal_size::terminal_size_of(std::io::stdout());
    size.map_or(PLAIN_WIDTH, |(width, _)| usize::from(width.0))
}

/// Returns a text with control characters escaped, as a path may have some that a terminal would obey, or that hide what others are.
pub(crate) fn escaped(text: &str) -> String {
    rackweave_core::visible(text)
}

/// Returns a text of several lines with the control characters in each line escaped.
pub(crate) fn escaped_lines(text: &str) -> String {
    text.lines().flat_map(|line| [escaped(line), "\n".to_owned()]).collect()
}

/// Prints a line about the progress of a command to stderr.
#[cfg(feature = "hosts")]
pub(crate) fn status(text: &str) {
    // If stderr is closed, the text cannot be reported anywhere.
    let _ = std::io::stderr().lock().write_all(text.as_bytes());
}

/// A number of bytes with three significant digits, such as "12.3 MB".
#[cfg(feature = "hosts")]
#[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
pub(crate) fn size(bytes: u64) -> String {
    rackweave_lab::report::number::bytes(bytes as f64)
}

/// A rate with three significant digits, such as "941 Mbps".
#[cfg(feature = "hosts")]
pub(crate) fn rate(bits_per_second: f64) -> String {
    rackweave_lab::report::number::rate(bits_per_second)
}

/// The name of this machine, by which others know it.
#[cfg(feature = "hosts")]
pub(crate) fn machine_name() -> Option<String> {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").ok()?;
    Some(name.trim().to_owned()).filter(|name| !name.is_empty())
}

/// Lower-case hexadecimal, as `b3sum` prints hashes.
#[cfg(feature = "hosts")]
pub(crate) fn hex(hash: &[u8]) -> String {
    hash.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns a JSON value as one line of text. Characters that are not seen as themselves can only be in its strings, and are escaped there: a
/// terminal shows the line too.
#[cfg(feature = "hosts")]
pub(crate) fn json_text(value: &serde_json::Value) -> String {
    use std::fmt::Write as _;
    let text = value.to_string();
    let mut escaped = String::with_capacity(text.len());
    for letter in text.chars() {
        if !rackweave_core::is_hidden(letter) {
            escaped.push(letter);
            continue;
        }
        for unit in letter.encode_utf16(&mut [0; 2]) {
            // Writing to a string cannot fail.
            let _ = write!(escaped, "\\u{unit:04x}");
        }
    }
    escaped
}

#[cfg(all(test, feature = "hosts"))]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_json_says_the_same_and_hides_nothing() {
        let value = serde_json::json!({ "name": "a\u{202e}b\u{e0041}\u{1b}", "other": ["ß", 1] });
        let text = json_text(&value);
        assert!(!text.contains(rackweave_core::is_hidden), "{text}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&text).unwrap(), value);
    }
}
