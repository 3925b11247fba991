! pinyard: registered memory that no allocator can hang.
!
! The functions of pinyard.h, which says what each does, for Fortran 2018: compile this
! file with the program's own compiler, and link as pkg-config says.
!
!   gfortran -c $(pkg-config --variable=includedir pinyard)/pinyard.f90
!   gfortran prog.f90 pinyard.o $(pkg-config --libs pinyard)
!
! A name that C has for a structure ends in _t here, where capitals are no difference.
! Structures begin with zeros: set `size` to c_sizeof of them. C's unsigned integers are
! signed ones of the same length. An argument that may be null in C is optional; memory
! is passed as c_loc of something that is a target and contiguous.
!
! Made of pinyard.h by xtask/ci/header.sh.
!
! SPDX-License-Identifier: MIT OR Apache-2.0
module pinyard
    use, intrinsic :: iso_c_binding
    implicit none
    private
    public :: pny_message, pny_text
