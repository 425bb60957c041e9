//! Texts of out-of-memory errors: their figures, one cause and one fix.

mod explanation;
mod python;
mod rest;
mod sizes;

pub use self::explanation::Explanation;

/// Explains an out-of-memory error anywhere in a text. `None` if no known error is in it. Lines may
/// be wrapped anywhere between two words.
pub fn explain_error(text: &str) -> Option<Explanation> {
    // Specific readers come first. Most texts end with the driver's own words, which `bare` reads.
    let readers: [fn(&str) -> Option<Explanation>; 10] = [
        rest::gpuheap,
        python::torch,
        python::rmm,
        python::cupy,
        python::jax,
        rest::julia,
        python::pycuda,
        python::numba,
        rest::cudarc,
        rest::bare,
    ];
    let unwrapped = unwrapped(text);
    // Our own error is one line, after which other text follows.
    rest::gpuheap(text).or_else(|| readers.iter().find_map(|read| read(&unwrapped)))
}

/// Returns the text in one line, with one space between two words.
fn unwrapped(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for word in text.split_whitespace() {
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    line
}
