//! Exported `dlsym` that returns a library's own functions in place of the CUDA functions it
//! replaces.

/// Exports `dlsym` for a [`Catcher`](crate::Catcher), a static of the calling crate.
///
/// For `RTLD_NEXT`, the loader's `dlsym` searches after the library that contains its return
/// address. The exported function therefore jumps to the loader's `dlsym`, with the arguments and
/// the return address of the program's call.
#[macro_export]
macro_rules! export_dlsym {
    ($catcher:path) => {
        unsafe extern "C" fn answer_dlsym(
            handle: *mut ::std::ffi::c_void,
            symbol: *const ::std::ffi::c_char,
            caller: *const ::std::ffi::c_void,
        ) -> $crate::Answer {
            // SAFETY: the program keeps the contract of `dlsym`.
            unsafe { $catcher.answer(handle, symbol, caller) }
        }

        /// Exported `dlsym`. Returns this library's functions for CUDA functions that it replaces.
        // SAFETY: the function has the signature and the contract of `dlsym`.
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        unsafe extern "C" fn dlsym(
            handle: *mut ::std::ffi::c_void,
            symbol: *const ::std::ffi::c_char,
        ) -> *mut ::std::ffi::c_void {
            ::std::arch::naked_asm!(
                "push rdi",
                "push rsi",
                // Aligns the stack to 16 bytes for the call.
                "sub rsp, 8",
                "mov rdx, [rsp + 24]",
                "call {answer}",
                "add rsp, 8",
                "pop rsi",
                "pop rdi",
                "test rax, rax",
                "jne 2f",
                "test rdx, rdx",
                "je 2f",
                "jmp rdx",
                "2:",
                "ret",
                answer = sym answer_dlsym,
            )
        }
    };
}
