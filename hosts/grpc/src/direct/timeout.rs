//! The `grpc-timeout` field.

use std::time::Duration;

use http::HeaderMap;

/// The timeout of a call, if its field is valid; an invalid one is ignored, as in tonic.
pub(super) fn grpc_timeout(fields: &HeaderMap) -> Option<Duration> {
    let text = fields.get("grpc-timeout")?.to_str().ok()?;
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if digits.is_empty() || digits.len() > 8 || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let number = digits.parse().ok()?;
    Some(match unit {
        "H" => Duration::from_secs(number * 3600),
        "M" => Duration::from_secs(number * 60),
        "S" => Duration::from_secs(number),
        "m" => Duration::from_millis(number),
        "u" => Duration::from_micros(number),
        "n" => Duration::from_nanos(number),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts() {
        let parse = |text: &str| {
            let mut fields = HeaderMap::new();
            fields.insert("grpc-timeout", http::HeaderValue::from_str(text).unwrap());
            grpc_timeout(&fields)
        };
        assert_eq!(parse("3H"), Some(Duration::from_secs(10_800)));
        assert_eq!(parse("2M"), Some(Duration::from_secs(120)));
        assert_eq!(parse("99999999S"), Some(Duration::from_secs(99_999_999)));
        assert_eq!(parse("250m"), Some(Duration::from_millis(250)));
        assert_eq!(parse("7u"), Some(Duration::from_micros(7)));
        assert_eq!(parse("7n"), Some(Duration::from_nanos(7)));
        for wrong in ["", "S", "100000000S", "1", "1s", "-1S", "1 S", "+1S"] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
        assert_eq!(grpc_timeout(&HeaderMap::new()), None);
    }
}
