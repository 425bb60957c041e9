//! Misuse that Rust can stop does not compile, and says why.
//!
//! Here, because trybuild checks anew all that a package's tests depend on: of the library's own
//! tests that is three times as much.

#[test]
fn misuse_does_not_compile() {
    trybuild::TestCases::new().compile_fail("tests/compile/*.rs");
}
