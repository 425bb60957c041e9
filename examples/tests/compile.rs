//! Misuse that Rust can stop does not compile, and says why.
//!
//! The test is here, because trybuild checks all dependencies of a package's tests again. The
//! library's own tests have three times as many.

#[test]
fn misuse_does_not_compile() {
    trybuild::TestCases::new().compile_fail("tests/compile/*.rs");
}
