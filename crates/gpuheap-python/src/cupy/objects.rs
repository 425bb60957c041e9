//! CuPy's two objects of an allocation, a memory and a pointer to it, made by writing their fields.
//!
//! A call of one of their classes takes 570 instructions, most of them for Python's arguments. The
//! heap's pair takes 750.

use std::ffi::{c_int, c_void};

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyTuple, PyType};

/// CuPy's classes.
pub(super) struct Objects {
    /// Fields: address, size, device, argument of the function that frees, that function.
    memory: Class<5>,
    /// Fields: address, device, memory.
    pointer: Class<3>,
}

/// A class of CuPy, with the places of fields in its objects, in words.
struct Class<const FIELDS: usize> {
    class: Py<PyType>,
    new: ffi::newfunc,
    places: [usize; FIELDS],
}

/// Words of an object before its fields.
const HEADER: usize = size_of::<ffi::PyObject>() / size_of::<usize>();

/// Address, size, device and argument of the objects that show the places of the fields.
const EXAMPLE: [usize; 4] =
    [0x3a91_c5d2_7e14_86b0, 0x1b7d_42f8_9c06_e350, 0x51e7_29b4, 0x2cf3_5b81_d64a_9e70];

impl Objects {
    /// Finds the fields in objects that CuPy makes. Returns `None` if objects made here differ.
    pub(super) fn find(
        memory_class: &Bound<'_, PyAny>,
        pointer_class: &Bound<'_, PyAny>,
    ) -> Option<Objects> {
        let [address, size, device, argument] = EXAMPLE;
        let (take, free) = (take_example as *const () as usize, free_example as *const () as usize);
        let memory = memory_class.call1((size, argument, take, free, device)).ok()?;
        let pointer = pointer_class.call1((&memory, 0)).ok()?;
        let of_memory = Class::find(&memory, [address, size, device, argument, free])?;
        let of_pointer = Class::find(&pointer, [address, device, memory.into_ptr() as usize])?;
        Some(Objects { memory: of_memory, pointer: of_pointer })
    }

    /// Makes a memory and a pointer to it. If that fails, frees `argument`.
    ///
    /// # Safety
    ///
    /// `free` takes `argument` once, unless `address` is 0.
    pub(super) unsafe fn make<'py>(
        &self,
        py: Python<'py>,
        [address, size, argument]: [usize; 3],
        free: unsafe extern "C" fn(*mut c_void, *mut c_void, c_int),
        device: c_int,
    ) -> PyResult<Bound<'py, PyAny>> {
        let number = device.cast_unsigned() as usize;
        let values = [address, size, number, argument, free as *const () as usize];
        // SAFETY: no value is a reference.
        let memory = unsafe { self.memory.make(py, values) }.inspect_err(|_| {
            if address != 0 {
                // SAFETY: no object has the argument.
                unsafe { free(argument as *mut c_void, address as *mut c_void, device) };
            }
        })?;
        // SAFETY: the pointer gets the reference to the memory.
        let pointer =
            unsafe { self.pointer.make(py, [address, number, memory.as_ptr() as usize]) }?;
        std::mem::forget(memory);
        // SAFETY: the memory replaced a new pointer's reference to `None`.
        unsafe { ffi::Py_DecRef(ffi::Py_None()) };
        Ok(pointer)
    }
}

impl<const FIELDS: usize> Class<FIELDS> {
    /// Finds the fields of `example` by their values. Takes over a reference among the values.
    fn find(example: &Bound<'_, PyAny>, values: [usize; FIELDS]) -> Option<Class<FIELDS>> {
        let (py, class) = (example.py(), example.get_type());
        let size: usize = class.getattr("__basicsize__").ok()?.extract().ok()?;
        // SAFETY: the class says how large its objects are, and both objects live until the end.
        let fields = |object: &Bound<'_, PyAny>| unsafe {
            let words = object.as_ptr().cast::<usize>();
            std::slice::from_raw_parts(words, size / size_of::<usize>()).get(HEADER..)
        };
        let known = fields(example)?.to_vec();
        let mut places = [0; FIELDS];
        for (place, value) in places.iter_mut().zip(values) {
            *place = HEADER + known.iter().position(|word| *word == value)?;
        }
        // SAFETY: the slot of a class that is alive is null or a function of this type.
        let new = unsafe {
            let slot = ffi::PyType_GetSlot(class.as_type_ptr(), ffi::Py_tp_new);
            std::mem::transmute::<*mut c_void, Option<ffi::newfunc>>(slot)?
        };
        let found = Class { class: class.unbind(), new, places };
        // SAFETY: the object owns a reference among the values.
        let made = unsafe { found.make(py, values) }.ok()?;
        (fields(&made)? == known).then_some(found)
    }

    /// Makes an object, and writes its fields.
    ///
    /// # Safety
    ///
    /// The object may own a reference among the values.
    unsafe fn make<'py>(
        &self,
        py: Python<'py>,
        values: [usize; FIELDS],
    ) -> PyResult<Bound<'py, PyAny>> {
        let class = self.class.bind(py).as_type_ptr();
        // SAFETY: the function makes an object of the class, which has these fields.
        unsafe {
            let made = (self.new)(class, PyTuple::empty(py).as_ptr(), std::ptr::null_mut());
            let made = Bound::from_owned_ptr_or_err(py, made)?;
            let words = made.as_ptr().cast::<usize>();
            for (place, value) in self.places.into_iter().zip(values) {
                words.add(place).write(value);
            }
            Ok(made)
        }
    }
}

/// Returns the address of the example.
unsafe extern "C" fn take_example(_: *mut c_void, _: usize, _: c_int) -> *mut c_void {
    EXAMPLE[0] as *mut c_void
}

/// Frees the example, which has no memory.
unsafe extern "C" fn free_example(_: *mut c_void, _: *mut c_void, _: c_int) {}
