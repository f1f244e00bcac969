//! Who may submit jobs: a token for each tenant.

use std::collections::BTreeMap;

use rackweave_rackless::controller::check_name;

/// The shortest token.
const SHORTEST: usize = 16;

/// The tenants and their tokens.
#[derive(Clone, Default)]
pub struct Tenants(Option<BTreeMap<String, (String, bool)>>);

/// Whose a request is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Tenant {
    /// The name under which its jobs are listed.
    pub(crate) name: String,
    /// Whether it sees the names of all jobs.
    pub(crate) is_operator: bool,
}

/// The name of everybody, if there are no tokens.
const EVERYBODY: &str = "local";

/// What is wrong with a list of tenants.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {problem}")]
pub struct TenantsError {
    /// The line, from 1.
    pub line: usize,
    /// What is wrong.
    pub problem: String,
}

impl std::fmt::Debug for Tenants {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names = self.0.as_ref().map(|all| all.keys().collect::<Vec<_>>());
        f.debug_tuple("Tenants").field(&names).finish()
    }
}

impl Tenants {
    /// Everybody is the tenant `local`, and sees all jobs.
    #[must_use]
    pub const fn everybody() -> Self {
        Self(None)
    }

    /// Reads lines of a name, a token and, for one that sees the names of all jobs, the word `operator`; a word that begins with `#`
    /// begins a comment.
    ///
    /// # Errors
    /// If a line has something else, a token is short, or a name or token is there twice.
    pub fn read(text: &str) -> Result<Self, TenantsError> {
        let mut all = BTreeMap::new();
        for (line, text) in (1..).zip(text.lines()) {
            let wrong = |problem: &str| TenantsError { line, problem: problem.to_owned() };
            let words = text.split_whitespace().take_while(|word| !word.starts_with('#'));
            let words: Vec<&str> = words.collect();
            let (words, is_operator) = match &words[..] {
                [words @ .., "operator"] if words.len() == 2 => (words, true),
                words => (words, false),
            };
            match *words {
                [] => {}
                [name, token] => {
                    check_name(name).map_err(|error| wrong(&error.to_string()))?;
                    if token.len() < SHORTEST {
                        return Err(wrong("a token has at least 16 characters"));
                    }
                    if all.values().any(|(other, _)| other == token) {
                        return Err(wrong("another tenant has this token"));
                    }
                    let value = (token.to_owned(), is_operator);
                    if all.insert(name.to_owned(), value).is_some() {
                        return Err(wrong("this tenant is there twice"));
                    }
                }
                _ => return Err(wrong("expected a name and a token, and perhaps `operator`")),
            }
        }
        if all.is_empty() {
            return Err(TenantsError { line: 1, problem: "there is no tenant".to_owned() });
        }
        Ok(Self(Some(all)))
    }

    /// Whether tokens are needed.
    #[must_use]
    pub const fn has_tokens(&self) -> bool {
        self.0.is_some()
    }

    /// The tenant who has this token. The time that this takes says nothing of any token.
    pub(crate) fn of(&self, token: Option<&str>) -> Option<Tenant> {
        let Some(all) = &self.0 else {
            return Some(Tenant { name: EVERYBODY.to_owned(), is_operator: true });
        };
        let token = token?.as_bytes();
        let mut found = None;
        for (name, (own, is_operator)) in all {
            let own = own.as_bytes();
            let differ = own.iter().zip(token).fold(0, |sum, (a, b)| sum | (a ^ b));
            if differ == 0 && own.len() == token.len() {
                found = Some(Tenant { name: name.clone(), is_operator: *is_operator });
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_names_its_tenant() {
        let text = "a 0123456789abcdef # one\n\nb 0123456789abcdeF operator\nc 0123456789#abcdef\n";
        let tenants = Tenants::read(text).unwrap();
        let is = |token, name: &str, is_operator| {
            let tenant = Tenant { name: name.to_owned(), is_operator };
            assert_eq!(tenants.of(Some(token)), Some(tenant));
        };
        is("0123456789abcdef", "a", false);
        is("0123456789abcdeF", "b", true);
        is("0123456789#abcdef", "c", false);
        for wrong in [None, Some(""), Some("0123456789abcde"), Some("0123456789abcdef0")] {
            assert_eq!(tenants.of(wrong), None, "{wrong:?}");
        }
        let everybody = Tenants::everybody().of(None).unwrap();
        assert_eq!((&*everybody.name, everybody.is_operator), ("local", true));
        let wrong = |text: &str| Tenants::read(text).unwrap_err().to_string();
        let expected = "line 1: expected a name and a token, and perhaps `operator`";
        for text in ["a\n", "a 0123456789abcdef guest"] {
            assert_eq!(wrong(text), expected);
        }
        assert_eq!(wrong("\na short"), "line 2: a token has at least 16 characters");
        let twice = "a 0123456789abcdef\nb 0123456789abcdef";
        assert_eq!(wrong(twice), "line 2: another tenant has this token");
        assert_eq!(wrong("# nobody"), "line 1: there is no tenant");
    }
}
