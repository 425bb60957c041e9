//! Misuse that Rust can stop does not compile, and says why.

#[test]
fn misuse_does_not_compile() {
    trybuild::TestCases::new().compile_fail("tests/compile/*.rs");
}
