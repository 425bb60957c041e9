//! Tests that misuse does not compile, and that the compiler's message names the reason.
//!
//! The test is in this package because trybuild checks all dependencies of a package's tests again.
//! The library's own tests have three times as many dependencies.

#[test]
fn misuse_does_not_compile() {
    trybuild::TestCases::new().compile_fail("tests/compile/*.rs");
}
