from pgsweep._native import __version__ as __version__
from pgsweep.advice.ask import advise as advise
from pgsweep.api import examine_server as examine_server
from pgsweep.api import huge_pages as huge_pages
from pgsweep.api import inspect_cache as inspect_cache
from pgsweep.api import inspect_memory as inspect_memory
from pgsweep.api import load_compare as load_compare
from pgsweep.api import load_plan as load_plan
from pgsweep.api import load_run as load_run
from pgsweep.api import memory_budget as memory_budget
from pgsweep.api import sample_load as sample_load
from pgsweep.api import warm_check as warm_check
from pgsweep.api import warm_keep as warm_keep
from pgsweep.api import warm_plan as warm_plan
from pgsweep.api import warm_restore as warm_restore
from pgsweep.api import warm_run as warm_run
from pgsweep.api import warm_save as warm_save
from pgsweep.cache.footprint import footprint as footprint
from pgsweep.errors import ClusterError as ClusterError
from pgsweep.errors import ConnectionFailed as ConnectionFailed
from pgsweep.errors import EvidenceError as EvidenceError
from pgsweep.errors import HeatError as HeatError
from pgsweep.errors import MissingAbility as MissingAbility
from pgsweep.errors import PgsweepError as PgsweepError
from pgsweep.errors import UnexpectedAnswer as UnexpectedAnswer
from pgsweep.errors import UsageError as UsageError
from pgsweep.evidence.gathered import import_gathered as import_gathered
from pgsweep.evidence.oracle_export import export_oracle_general as export_oracle_general
from pgsweep.evidence.oracle_general import read_oracle_general as read_oracle_general
from pgsweep.evidence.reader import Evidence as Evidence
from pgsweep.evidence.record import plan_record as plan_record
from pgsweep.evidence.record import record as record
from pgsweep.evidence.script import record_script as record_script
from pgsweep.lab.catalog import list_experiments as _lab_list
from pgsweep.lab.chosen import run_lab as _lab_run
from pgsweep.lab.compare import compare as _lab_compare
from pgsweep.lab.every import run_every as _lab_run_all
from pgsweep.load.loading import keep_as_is as _load_keep_as_is
from pgsweep.load.loading import resume as _load_resume
from pgsweep.load.loading import roll_back as _load_rollback
from pgsweep.load.options import LoadOptions as LoadOptions
from pgsweep.memory.kernel import examine as _kernel_settings
from pgsweep.sizing.demo import run_demo as _demo
from pgsweep.sizing.predict import predict as predict
from pgsweep.sizing.prove import prove as prove
from pgsweep.sizing.verify import verify as verify
from pgsweep.warm.heat.file import read_heat as read_heat
from pgsweep.warm.heat.restore_plan import RestoreOptions as RestoreOptions
from pgsweep.warm.keep.keep import KeepOptions as KeepOptions
from pgsweep.warm.run.gather import Selection as Selection
from pgsweep.warm.run.prepare import WarmOptions as WarmOptions

kernel_settings = _kernel_settings
load_keep_as_is = _load_keep_as_is
load_resume = _load_resume
load_rollback = _load_rollback
lab_list = _lab_list
lab_compare = _lab_compare
lab_run_all = _lab_run_all
lab_run = _lab_run
demo = _demo
__all__: list[str]
