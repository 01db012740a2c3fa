//! Conversion of ordinary and hostile pages.

use std::time::{Duration, Instant};

use super::*;

fn base() -> Url {
    Url::parse("https://example.com/dir/page?q").unwrap()
}

fn as_markdown(page: &str) -> String {
    markdown(page, &base()).unwrap()
}

fn as_text(page: &str) -> String {
    text(page, &base()).unwrap()
}

#[test]
fn known_elements_become_markdown() {
    for (page, expected) in [
        ("<h1>Title</h1><p>One &amp; two.</p>", "# Title\n\nOne & two."),
        ("<H2 class='x>y'>T</h2>text", "## T\n\ntext"),
        ("a <b>bold</b> and <i>slanted</i> word", "a **bold** and *slanted* word"),
        ("<a href=\"other\">link</a>", "[link](https://example.com/dir/other)"),
        ("<a href=/x?a=1&amp;b=2>link</a>", "[link](https://example.com/x?a=1&b=2)"),
        ("<img src='/p.png' alt='A p'>", "![A p](https://example.com/p.png)"),
        ("<ul><li>one<li>two</ul>", "*   one\n*   two"),
        ("<ol><li>one</li><li>two</li></ol>", "1.  one\n2.  two"),
        ("<blockquote><p>said</blockquote>", "> said"),
        ("one<br>two", "one  \ntwo"),
        ("<p>one<p>two", "one\n\ntwo"),
        ("use <code>x &lt; y</code>", "use `x < y`"),
        ("1 < 2 <3", "1 < 2 <3"),
        ("<!doctype html><!-- no <b>bold</b> -->yes<!-->", "yes"),
        ("<head><title>no</title><style>p {}</style></head>yes", "yes"),
        ("<script>if (a < b) { '</b>' }</script>yes", "yes"),
        ("<SVG><text>no</text></SVG>yes<script>never closed", "yes"),
        ("<custom-element>yes</custom-element>", "yes"),
        ("yes<b", "yes"),
        ("", ""),
    ] {
        assert_eq!(as_markdown(page), expected, "{page}");
    }
    let code = as_markdown("<pre><code class=\"language-rust\">fn main() {\n    x\n}</code></pre>");
    assert!(code.contains("```rust\nfn main() {\n    x\n}\n```"), "{code}");
    let table =
        as_markdown("<table><thead><tr><th>a<th>b</thead><tr><td>1</td><td><b>2</table>after");
    assert!(table.contains("| a") && table.contains("**2**"), "{table}");
    assert!(table.ends_with("after"), "{table}");
}

#[test]
fn pages_become_text_without_markup() {
    for (page, expected) in [
        ("<h1>Title</h1>\n<p>One   &amp;\n two.</p>", "Title\nOne & two."),
        ("a<b>b</b> <i>c</i>", "ab c"),
        ("<ul><li>one<li>two</ul>", "one\ntwo"),
        ("one<br>two<hr>three", "one\ntwo\nthree"),
        ("<pre>a\n  b</pre>", "a\n  b"),
        ("<table><tr><td>1<td>2<tr><td>3</table>", "1 2\n3"),
        ("<a href=x>link</a>*not* _this_", "link*not* _this_"),
        ("<script>no</script>", ""),
    ] {
        assert_eq!(as_text(page), expected, "{page}");
    }
}

#[test]
fn sanitized_elements_are_properly_nested() {
    for (page, expected) in [
        ("<b><i>x</b></i>y", "<strong><em>x</em></strong>y"),
        ("<b>x<p>y</b>z", "<strong>x</strong><p>yz</p>"),
        ("<p>a<div>b</div></p>c", "<p>a</p><div>b</div>c"),
        ("</div></b>a</table>", "a"),
        ("<table><tr><td></div></p>a</table></td>b", "<table><tr><td>a</td></tr></table>b"),
        ("<a href=x><div>t</div></a>", "<a href=\"https://example.com/dir/x\"> t</a>"),
        ("<a><a>x", "<a></a><a>x</a>"),
        ("<a href=\"javascript:'&quot;\">x</a>", "<a href=\"javascript:'&quot;\">x</a>"),
        ("<a title='href=no' href = 'yes' >x", "<a href=\"https://example.com/dir/yes\">x</a>"),
        ("<a href=\"a<b>\">x", "<a href=\"https://example.com/dir/a%3Cb%3E\">x</a>"),
        ("a\0b", "ab"),
    ] {
        assert_eq!(sanitize(page, &base()), expected, "{page}");
    }
}

#[test]
fn hostile_pages_take_bounded_time_and_space() {
    const COUNT: usize = 40_000;
    let attributes: String = (0..COUNT).map(|number| format!(" a{number}=1")).collect();
    let long_base = format!("<base href=/{}>", "x".repeat(4000));
    let longest_base = format!("<base href=/{}>", "x".repeat(1 << 20));
    let different: String = (0..COUNT).map(|number| format!("<b a={number}>")).collect();
    for page in [
        "<div>".repeat(COUNT),
        "<table><tr><td>".repeat(COUNT),
        "<div><table>x".repeat(COUNT),
        "<table><tr>x".repeat(COUNT),
        "<table><br>".repeat(COUNT),
        long_base + &"<a href=x>y</a>".repeat(COUNT),
        longest_base + &"<a href=x>y</a>".repeat(COUNT),
        "<pre>x".repeat(COUNT),
        "<div>x".repeat(COUNT),
        "<ul><li>".repeat(COUNT),
        "<blockquote>".repeat(COUNT) + "x",
        different + &"<p>".repeat(COUNT),
        "<a href=x>".repeat(COUNT),
        "<b><p>".repeat(COUNT),
        format!("<p{attributes}>x"),
        "<".repeat(COUNT),
        "</".repeat(COUNT),
        "<!--".repeat(COUNT),
        "<script>".repeat(COUNT) + &"</scrip".repeat(COUNT),
        "<a b=\"".repeat(COUNT),
        "&".repeat(COUNT),
        "*_`[]()".repeat(COUNT),
    ] {
        let prefix: String = page.chars().take(20).collect();
        let started = Instant::now();
        let (markdown, text) = (as_markdown(&page), as_text(&page));
        assert!(markdown.len() < page.len() * 60, "{prefix}");
        assert!(text.len() <= page.len(), "{prefix}");
        assert!(started.elapsed() < Duration::from_secs(60), "{prefix}");
    }
}

#[test]
fn preformatted_text_is_code() {
    for (page, expected) in [
        (
            "<pre>if a:\n    b = c*d*e\n# no heading\n&lt;x&gt;</pre>after",
            "```\nif a:\n    b = c*d*e\n# no heading\n<x>\n```\n\nafter",
        ),
        (
            "<div class=highlight><pre><span></span><b>import</b> <a href=x>os</a><br># one<img src=y></pre></div>",
            "```\nimport os\n# one\n```",
        ),
        ("<pre>\n<code class=language-rs>a</code>\n<code>b</code></pre>", "```rs\na\nb\n```"),
    ] {
        assert_eq!(as_markdown(page), expected, "{page}");
    }
}

#[test]
fn nested_plain_blocks_do_not_add_depth() {
    let deep = |open: &str, count: usize| {
        format!("{}<p>one</p><p>two <a href=/x>LINK</a></p>", open.repeat(count))
    };
    let expected = "one\n\ntwo [LINK](https://example.com/x)";
    assert_eq!(as_markdown(&deep("<div><section>", 200)), expected);
    let quoted = as_markdown(&deep("<blockquote>", 200));
    let words: Vec<_> = quoted.split([' ', '>', '\n']).filter(|word| !word.is_empty()).collect();
    assert_eq!(words, ["one", "two", "[LINK](https://example.com/x)"]);
    for (page, expected) in [
        ("<div>a<div>b<div>c</div>d</div>e</div>f", "a\n\nb\n\nc\n\nd\n\ne\n\nf"),
        ("<div><div><ul><li><div>a</div></li><li>b</ul></div>c</div>", "*   a\n\n*   b\n\nc"),
        ("<div><div><ul><li>a</div>b", "*   a\n\nb"),
    ] {
        assert_eq!(as_markdown(page), expected, "{page}");
    }
}

#[test]
fn links_are_relative_to_the_base_element() {
    for (base, expected) in [
        ("/docs/v2/", "https://example.com/docs/v2/intro"),
        ("http://other.test/x/y", "http://other.test/x/intro"),
        ("javascript:x", "https://example.com/dir/intro"),
        ("/first/><base href=/second/", "https://example.com/first/intro"),
    ] {
        let page = format!("<base href={base}><a href=intro>x</a>");
        assert_eq!(as_markdown(&page), format!("[x]({expected})"), "{base}");
    }
}

#[test]
fn all_cells_are_converted() {
    let head = "| name | bob |\n| ---- | --- |";
    for (page, expected) in [
        ("<table><tr><th>name</th><td>bob</td></tr></table>after", format!("{head}\n\nafter")),
        (
            "<table><tr><th>name<th>bob<tr><th>age</th><td>5</td></table>",
            format!("{head}\n| age  | 5   |"),
        ),
    ] {
        assert_eq!(as_markdown(page), expected, "{page}");
    }
    let inner = "<table><tr><td><table><tr><th>a<td>b</table></td><td>c</td></tr></table>";
    assert_eq!(as_text(inner).split_whitespace().collect::<String>(), "abc");
}
