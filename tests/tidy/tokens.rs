//! Tokens of a Rust source without its comments, strings and tests: just enough of the language for
//! the rules of this repository.

/// A word or symbol.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Token {
    /// An identifier, keyword or number.
    Word(String),
    /// `::`
    Colons,
    /// Any other character.
    Symbol(char),
}

/// The tokens with their lines, without items that are compiled for tests only.
pub(super) fn without_tests(source: &str) -> Vec<(usize, Token)> {
    let mut tokens = Vec::new();
    let mut rest = &tokens_of(source)[..];
    while let [first, after @ ..] = rest {
        match attribute_length(rest) {
            Some(length) if is_test_only(&rest[..length]) => {
                rest = after_item(&rest[length..]);
            }
            _ => {
                tokens.push(first.clone());
                rest = after;
            }
        }
    }

    tokens
}

/// All tokens with their lines.
pub(super) fn tokens_of(source: &str) -> Vec<(usize, Token)> {
    let characters: Vec<char> = source.chars().collect();
    let mut tokens = Vec::new();
    let mut line = 1;

    let mut position = 0;
    while position < characters.len() {
        let rest = &characters[position..];
        let (length, token) = match rest {
            ['/', '/', ..] => (prefix_length(rest, |character| character != '\n'), None),
            ['/', '*', ..] => (block_comment_length(rest), None),
            [':', ':', ..] => (2, Some(Token::Colons)),
            ['"', ..] => (string_length(rest), None),
            ['\'', ..] => (quote_length(rest), None),
            [first, ..] if first.is_alphanumeric() || *first == '_' => {
                let length = prefix_length(rest, |character| {
                    character.is_alphanumeric() || character == '_'
                });
                let word: String = rest[..length].iter().collect();
                match (word.as_str(), &rest[length..]) {
                    ("r" | "br" | "cr", after @ ['"' | '#', ..]) => {
                        match raw_string_length(after) {
                            Some(string) => (length + string, None),
                            None => (length + 1, None), // `r#word`: the word follows
                        }
                    }
                    ("b" | "c", after @ ['"', ..]) => (length + string_length(after), None),
                    ("b", after @ ['\'', ..]) => (length + quote_length(after), None),
                    _ => (length, Some(Token::Word(word))),
                }
            }
            [first, ..] => (1, (!first.is_whitespace()).then_some(Token::Symbol(*first))),
            [] => break,
        };

        if let Some(token) = token {
            tokens.push((line, token));
        }

        line += rest[..length].iter().filter(|c| **c == '\n').count();
        position += length;
    }

    tokens
}

fn prefix_length(characters: &[char], belongs: impl Fn(char) -> bool) -> usize {
    characters.iter().take_while(|character| belongs(**character)).count()
}

/// Length of a block comment with its nested comments.
fn block_comment_length(characters: &[char]) -> usize {
    let mut depth = 0;
    let mut position = 0;
    while position < characters.len() {
        match &characters[position..] {
            ['/', '*', ..] => {
                depth += 1;
                position += 2;
            }
            ['*', '/', ..] => {
                depth -= 1;
                position += 2;
                if depth == 0 {
                    break;
                }
            }
            _ => position += 1,
        }
    }

    position
}

/// Length of a string with its quotes.
fn string_length(characters: &[char]) -> usize {
    let mut position = 1;
    while position < characters.len() && characters[position] != '"' {
        position += if characters[position] == '\\' { 2 } else { 1 };
    }
    (position + 1).min(characters.len())
}

/// Length of a raw string from its first `#` or quote.
fn raw_string_length(characters: &[char]) -> Option<usize> {
    let hashes = prefix_length(characters, |character| character == '#');
    if characters.get(hashes) != Some(&'"') {
        return None;
    }

    let end: Vec<char> = std::iter::once('"').chain(std::iter::repeat_n('#', hashes)).collect();
    let body = &characters[hashes + 1..];
    let at = body.windows(end.len()).position(|window| window == end)?;
    Some(hashes + 1 + at + end.len())
}

/// Length of a character, or of the quote alone before a lifetime's name.
fn quote_length(characters: &[char]) -> usize {
    match characters {
        ['\'', '\\', ..] => {
            3 + characters[3..].iter().position(|character| *character == '\'').unwrap_or_default()
                + 1
        }
        ['\'', _, '\'', ..] => 3,
        _ => 1,
    }
}

/// Length of the attribute at the start.
fn attribute_length(tokens: &[(usize, Token)]) -> Option<usize> {
    let [(_, Token::Symbol('#')), (_, Token::Symbol('[')), ..] = tokens else {
        return None;
    };
    let mut depth = 0;
    for (position, (_, token)) in tokens.iter().enumerate() {
        match token {
            Token::Symbol('[') => depth += 1,
            Token::Symbol(']') => {
                depth -= 1;
                if depth == 0 {
                    return Some(position + 1);
                }
            }
            Token::Word(_) | Token::Symbol(_) | Token::Colons => {}
        }
    }

    None
}

/// Whether an attribute is `#[cfg(test)]` or `#[cfg(all(test, …))]`.
fn is_test_only(attribute: &[(usize, Token)]) -> bool {
    let words: Vec<&str> = attribute
        .iter()
        .filter_map(|(_, token)| match token {
            Token::Word(word) => Some(word.as_str()),
            Token::Symbol(_) | Token::Colons => None,
        })
        .collect();
    matches!(words.as_slice(), ["cfg", "test"] | ["cfg", "all", "test", ..])
}

/// The tokens after the item at the start.
fn after_item(mut tokens: &[(usize, Token)]) -> &[(usize, Token)] {
    while let Some(length) = attribute_length(tokens) {
        tokens = &tokens[length..];
    }

    let mut depth = 0;
    for (position, (_, token)) in tokens.iter().enumerate() {
        match token {
            Token::Symbol('{' | '(' | '[') => depth += 1,
            Token::Symbol(symbol @ ('}' | ')' | ']')) => {
                depth -= 1;
                if depth == 0 && *symbol == '}' {
                    return &tokens[position + 1..];
                }
            }
            Token::Symbol(';') if depth == 0 => return &tokens[position + 1..],
            Token::Word(_) | Token::Symbol(_) | Token::Colons => {}
        }
    }

    &[]
}

mod tests {
    use super::*;

    fn words(tokens: &[(usize, Token)]) -> Vec<(usize, &str)> {
        tokens
            .iter()
            .filter_map(|(line, token)| match token {
                Token::Word(word) => Some((*line, word.as_str())),
                Token::Symbol(_) | Token::Colons => None,
            })
            .collect()
    }

    #[test]
    fn tokens_omit_comments_strings_and_characters() {
        let source = "a // b\n/* c /* d */ e */ f \"g \\\" h\" r#\"i \" j\"# b'k' '\\'' 'l' &'m n\nb\"o\" r#p '\\u{71}' s";
        assert_eq!(
            words(&tokens_of(source)),
            [(1, "a"), (2, "f"), (2, "m"), (2, "n"), (3, "p"), (3, "s")]
        );
    }

    #[test]
    fn without_tests_omits_test_only_items() {
        let source = "a\n#[cfg(test)]\n#[derive(B)]\nstruct C([u8; 2]);\nd\n#[cfg(all(test, unix))]\nmod tests {\n fn e() { f }\n}\n#[cfg(not(test))]\ng";
        let tokens = without_tests(source);
        let words = words(&tokens).into_iter().map(|(_, word)| word).collect::<Vec<_>>();
        assert_eq!(words, ["a", "d", "cfg", "not", "test", "g"]);
    }
}
