"""Write vllm_alerts.yml and vllm_dashboard.json: python -m labs.alerts"""
import json
from pathlib import Path

from labs.alerts import dashboard, rules_yaml

HERE = Path(__file__).parent
(HERE / "vllm_alerts.yml").write_text(rules_yaml(), encoding="utf-8")
(HERE / "vllm_dashboard.json").write_text(json.dumps(dashboard(), indent=1) + "\n", encoding="utf-8")
