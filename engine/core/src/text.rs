//! Texts of others, such as names of images, as people may see them.

/// Returns whether a character is not seen as itself: control characters, which a terminal obeys, and those of Unicode that are invisible or
/// change the order in which others are shown (bidirectional controls, Unicode Technical Report 36, section 2.5).
#[must_use]
pub fn is_hidden(letter: char) -> bool {
    letter.is_control()
        || matches!(letter,
            '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{180e}' | '\u{200b}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{3164}' | '\u{feff}' | '\u{ffa0}'
            | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

/// Returns a text in which each character that [`is_hidden`] is escaped, as `\u{202e}`.
#[must_use]
pub fn visible(text: &str) -> String {
    let mut visible = String::with_capacity(text.len());
    for letter in text.chars() {
        match is_hidden(letter) {
            true => visible.extend(letter.escape_default()),
            false => visible.push(letter),
        }
    }
    visible
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_would_deceive_a_reader_is_escaped() {
        let name = "golden\u{202e}gpj.exe\u{200b}\u{2066}\u{1b}[2J\u{feff}\u{e0041}";
        let shown = "golden\\u{202e}gpj.exe\\u{200b}\\u{2066}\\u{1b}[2J\\u{feff}\\u{e0041}";
        assert_eq!(visible(name), shown);
        let plain = "Schloß Ω 日本 debian-13 עברית";
        assert_eq!(visible(plain), plain);
        assert!(
            !visible(&(0..=0x10_ffff).filter_map(char::from_u32).collect::<String>())
                .contains(is_hidden)
        );
    }
}
