/*
 * What mpi.h has as macros or differently in every MPI: predefined datatypes and
 * operations by what they are, constants, a status.
 */
#include <mpi.h>
#ifdef OPEN_MPI
#include <mpi-ext.h>
#endif

/* As in src/types.rs. */
struct shim_type {
	/* Whether it is predefined. */
	int named;
	int size;
	long long lower, extent;
	/* 1 to 4: signed, 5 to 8: unsigned, of 1, 2, 4, 8 bytes; 9 float, 10 double, 11 binary16; else 0. */
	int number;
};

int pny_mpi_shim_type(MPI_Datatype type, struct shim_type *told);
int pny_mpi_shim_is_null(MPI_Datatype type);
int pny_mpi_shim_operation(MPI_Op operation);
void *pny_mpi_shim_in_place(void);
int pny_mpi_shim_status(MPI_Status *status, int source, int tag, MPI_Datatype type, int count);

static int whole(int size, int first)
{
	switch (size) {
	case 1: return first;
	case 2: return first + 1;
	case 4: return first + 2;
	case 8: return first + 3;
	default: return 0;
	}
}

/* Several names may be one handle. */
static int is_any(MPI_Datatype type, const MPI_Datatype *names, int count)
{
	for (int at = 0; at < count; at++)
		if (type == names[at])
			return 1;
	return 0;
}

static int number(MPI_Datatype type, int size)
{
	const MPI_Datatype floating[] = {
		MPI_FLOAT, MPI_DOUBLE,
#ifdef MPI_REAL
		MPI_REAL, MPI_DOUBLE_PRECISION,
#endif
#ifdef MPI_REAL4
		MPI_REAL4,
#endif
#ifdef MPI_REAL8
		MPI_REAL8,
#endif
	};
	const MPI_Datatype with_sign[] = {
		MPI_SIGNED_CHAR, MPI_SHORT, MPI_INT, MPI_LONG, MPI_LONG_LONG, MPI_INT8_T, MPI_INT16_T,
		MPI_INT32_T, MPI_INT64_T, MPI_AINT, MPI_OFFSET, MPI_COUNT,
#ifdef MPI_INTEGER
		MPI_INTEGER,
#endif
#ifdef MPI_INTEGER1
		MPI_INTEGER1,
#endif
#ifdef MPI_INTEGER2
		MPI_INTEGER2,
#endif
#ifdef MPI_INTEGER4
		MPI_INTEGER4,
#endif
#ifdef MPI_INTEGER8
		MPI_INTEGER8,
#endif
	};
	const MPI_Datatype without[] = {
		MPI_UNSIGNED_CHAR, MPI_UNSIGNED_SHORT, MPI_UNSIGNED, MPI_UNSIGNED_LONG,
		MPI_UNSIGNED_LONG_LONG, MPI_UINT8_T, MPI_UINT16_T, MPI_UINT32_T, MPI_UINT64_T,
	};
#ifdef MPIX_C_FLOAT16
	/* An extension, whose type the standard has no name for: not there, it is of no bytes. */
	if (size == 2 && type == MPIX_C_FLOAT16)
		return 11;
#endif
#define ANY(names) is_any(type, names, (int) (sizeof(names) / sizeof(names[0])))
	if (ANY(floating))
		return size == 4 ? 9 : size == 8 ? 10 : 0;
	if (ANY(with_sign))
		return whole(size, 1);
	return ANY(without) ? whole(size, 5) : 0;
}

int pny_mpi_shim_type(MPI_Datatype type, struct shim_type *told)
{
	int integers, addresses, datatypes, combiner, code;
	MPI_Aint lower, extent;

	code = MPI_Type_get_envelope(type, &integers, &addresses, &datatypes, &combiner);
	if (code != MPI_SUCCESS)
		return code;
	if ((code = MPI_Type_size(type, &told->size)) != MPI_SUCCESS)
		return code;
	if ((code = MPI_Type_get_extent(type, &lower, &extent)) != MPI_SUCCESS)
		return code;
	told->named = combiner == MPI_COMBINER_NAMED;
	told->lower = lower;
	told->extent = extent;
	told->number = number(type, told->size);
	return MPI_SUCCESS;
}

int pny_mpi_shim_is_null(MPI_Datatype type)
{
	return type == MPI_DATATYPE_NULL;
}

int pny_mpi_shim_operation(MPI_Op operation)
{
	return operation == MPI_SUM ? 1 : operation == MPI_MIN ? 2 : operation == MPI_MAX ? 3 : 0;
}

void *pny_mpi_shim_in_place(void)
{
	return MPI_IN_PLACE;
}

int pny_mpi_shim_status(MPI_Status *status, int source, int tag, MPI_Datatype type, int count)
{
	if (status == MPI_STATUS_IGNORE)
		return MPI_SUCCESS;
	status->MPI_SOURCE = source;
	status->MPI_TAG = tag;
	status->MPI_ERROR = MPI_SUCCESS;
	return MPI_Status_set_elements(status, type, count);
}
