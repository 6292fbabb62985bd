//! Keys made of the parts of a path.

use crate::InvalidTemplate;

/// How a record's key is made of its file's path relative to the folder that was given.
///
/// Text stands for itself; `{...}` for a part of the path (of `a/b/photo.tar.gz`):
///
/// | | |
/// |---|---|
/// | `{path}` | `a/b/photo.tar.gz` |
/// | `{dir}` | `a/b`, empty for a file at the top |
/// | `{name}` | `photo.tar.gz` |
/// | `{stem}` | `photo.tar`: the name without what follows its last dot |
/// | `{ext}` | `gz`, empty where there is none |
/// | `{1}`, `{2}`, ... | `a`, `b`, ...: the first component, the second, ...; empty beyond the last |
/// | `{-1}`, `{-2}`, ... | `photo.tar.gz`, `b`, ...: from the end |
/// | `{{`, `}}` | a brace |
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyTemplate {
    pieces: Vec<Piece>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Piece {
    Text(String),
    Path,
    Dir,
    Name,
    Stem,
    Ext,
    Component(i32),
}

impl std::str::FromStr for KeyTemplate {
    type Err = InvalidTemplate;

    fn from_str(template: &str) -> Result<Self, InvalidTemplate> {
        let invalid = |why: String| InvalidTemplate { template: template.to_owned(), why };
        let mut pieces = Vec::new();
        let mut text = String::new();
        let mut rest = template.chars().peekable();
        while let Some(c) = rest.next() {
            match c {
                '{' if rest.next_if_eq(&'{').is_some() => text.push('{'),
                '}' if rest.next_if_eq(&'}').is_some() => text.push('}'),
                '}' => return Err(invalid("a } has no {; a brace itself is written }}".into())),
                '{' => {
                    let name: String = std::iter::from_fn(|| rest.next_if(|c| *c != '}')).collect();
                    if rest.next().is_none() {
                        return Err(invalid("a { has no }; a brace itself is written {{".into()));
                    }
                    if !text.is_empty() {
                        pieces.push(Piece::Text(std::mem::take(&mut text)));
                    }
                    pieces.push(match &*name {
                        "path" => Piece::Path,
                        "dir" => Piece::Dir,
                        "name" => Piece::Name,
                        "stem" => Piece::Stem,
                        "ext" => Piece::Ext,
                        number => match number.parse() {
                            Ok(number) if number != 0 => Piece::Component(number),
                            _ => {
                                let why = "there are {path} {dir} {name} {stem} {ext} {1} {2} ... {-1} {-2} ...";
                                return Err(invalid(format!("{{{name}}} is unknown; {why}")));
                            }
                        },
                    });
                }
                other => text.push(other),
            }
        }
        if !text.is_empty() {
            pieces.push(Piece::Text(text));
        }
        if pieces.is_empty() {
            return Err(invalid("it is empty".into()));
        }
        Ok(Self { pieces })
    }
}

impl KeyTemplate {
    /// The key of the file with this relative path.
    pub fn key(&self, path: &str) -> String {
        let (dir, name) = path.rsplit_once('/').unwrap_or(("", path));
        let (stem, ext) = match name.rsplit_once('.') {
            Some((stem, ext)) if !stem.is_empty() => (stem, ext),
            _ => (name, ""),
        };
        let mut key = String::with_capacity(path.len());
        for piece in &self.pieces {
            key.push_str(match piece {
                Piece::Text(text) => text,
                Piece::Path => path,
                Piece::Dir => dir,
                Piece::Name => name,
                Piece::Stem => stem,
                Piece::Ext => ext,
                Piece::Component(at) if *at > 0 => path.split('/').nth(*at as usize - 1).unwrap_or(""),
                Piece::Component(at) => path.rsplit('/').nth(at.unsigned_abs() as usize - 1).unwrap_or(""),
            });
        }
        key
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(template: &str, path: &str) -> String {
        template.parse::<KeyTemplate>().unwrap().key(path)
    }

    #[test]
    fn keys_are_made_of_path_parts() {
        let path = "a/b/photo.tar.gz";
        for (template, expected) in [
            ("{path}", path),
            ("{dir}|{name}|{stem}|{ext}", "a/b|photo.tar.gz|photo.tar|gz"),
            ("{1}-{2}-{3}-{4}", "a-b-photo.tar.gz-"),
            ("{-1} {-2} {-9}", "photo.tar.gz b "),
            ("{{x}}", "{x}"),
            ("fixed", "fixed"),
        ] {
            assert_eq!(key(template, path), expected, "{template}");
        }
        assert_eq!(key("{dir}:{stem}:{ext}", ".hidden"), ":.hidden:");
    }

    #[test]
    fn wrong_templates_are_refused_with_what_there_is() {
        for (template, says) in [("{nmae}", "{name}"), ("{", "{{"), ("a}", "}}"), ("", "empty"), ("{0}", "unknown")] {
            let error = template.parse::<KeyTemplate>().unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
    }
}
